"""`python -m bertvision`: the command line."""

from bertvision.cli import main

main()
