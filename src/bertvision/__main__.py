"""`python -m bertvision`: the command line, for where its script is not on the path."""

from bertvision.cli import main

main()
