"""What several verbs print in the same way."""

from typing import Any

import typer


def help_without_verb(context: typer.Context) -> None:
    """Prints the help where no verb is given."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def print_table(rows: Any) -> None:
    """The scores of members as a table, as wide as the terminal."""
    from rich.console import Console

    from bertvision.report.console import console_table

    Console().print(console_table(rows))
