"""Lists for the terminal."""

from typing import Any

from rich.console import Console


def print_heads(entries: list[dict[str, Any]], layers: int, width: int, task: str) -> None:
    """The catalogue of heads: kind, parameters at its defaults, formula, options."""
    console = Console(highlight=False)
    console.print(f"Heads for {task} on {layers} layers of width {width}\n")
    for entry in entries:
        console.print(f"[bold]{entry['kind']}[/bold]  {entry['parameters']:,} parameters at its defaults")
        console.print(f"  {entry['formula']}", markup=False)
        for name, option in entry["options"].items():
            allowed = " | ".join(map(str, option["allowed"])) if option.get("allowed") else option["type"]
            console.print(f"    {name} = {option['default']!r}  ({allowed})", markup=False)
        console.print()
