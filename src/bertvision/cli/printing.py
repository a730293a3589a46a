"""What several verbs print in the same way."""

from typing import Any

import typer


def help_without_verb(context: typer.Context) -> None:
    """Prints the help where no verb is given."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def print_table(rows: Any) -> None:
    """The scores of members as a table, as wide as the terminal, and what rows say about themselves."""
    from rich.console import Console

    from bertvision.report.console import console_table
    from bertvision.report.reading import row_notes

    Console().print(console_table(rows))
    variants = list(dict.fromkeys(row.get("variant", "") for row in rows))
    for name in variants:
        for note in row_notes([row for row in rows if row.get("variant", "") == name]):
            print(f"{name}: {note}" if name else note)
