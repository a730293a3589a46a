"""Lists and progress bars for the terminal, without what reports need: heads, trials, cells, budgets, downloads."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from bertvision import toml
from bertvision.files import readable


def print_heads(entries: Sequence[Mapping[str, Any]], layers: int, width: int, task: str) -> None:
    """The catalogue of heads: kind, parameters at its defaults, formula, options."""
    console = Console(highlight=False)
    console.print(f"Heads for {task} on {layers} layers of width {width}\n")
    for entry in entries:
        size = entry["parameters"]
        note = f"not for {task}" if size is None else f"{size:,} parameters at its defaults"
        console.print(Text.assemble((entry["kind"], "bold"), f"  {note}"))
        console.print(Padding(Text(entry["summary"]), (0, 0, 0, 2)))
        options = Table.grid(padding=(0, 2))
        for option in entry["options"]:
            limit = f", {option['limit']}" if option["limit"] else ""
            options.add_row(
                Text(f"{option['name']} = {toml.literal(option['default'])}"), Text(f"{option['type']}{limit}")
            )
        if entry["options"]:
            console.print(Padding(options, (0, 0, 0, 4)))
        console.print()


def print_trials(rows: Sequence[Mapping[str, Any]], metric: str) -> None:
    """The trials of a search, the best first; then those that were not trained to the end."""
    caption = "scores on the set the trials are chosen by, which favours them"
    table = Table(box=SIMPLE_HEAD, pad_edge=False, caption=caption)
    for heading in ("trial", "head", f"{metric} on tune", "parameters"):
        table.add_column(heading, justify="left" if heading == "head" else "right")
    for row in sorted(rows, key=lambda row: -(row[f"tune_{metric}"] or 0.0)):
        score = row["state"] if row[f"tune_{metric}"] is None else f"{row[f'tune_{metric}']:.2f}"
        words = [
            row["head"]["kind"],
            *(f"{k}={toml.literal(v)}" for k, v in row["head"].items() if k not in ("kind", "name")),
        ]
        table.add_row(str(row["trial"]), Text(" ".join(words)), score, f"{row['parameters']:,}")
    Console(highlight=False).print(table)


def cell_lines(rows: Sequence[Mapping[str, Any]], device: str) -> list[str]:
    """The output of `bertvision cells`: a line per cell, with its forecast for one device if there is one."""
    lines = [f"{'':4}  {'cell':32}  {'kind':16}  {'FLOPs':>8}  {'memory':>8}  {f'hours, {device}':>11}  state"]
    for row in rows:
        state = "done" if row["done"] else "ready" if row["ready"] else "waits for its checkpoint"
        costs = f"{'?':>8}  {'?':>8}  {'?':>11}"
        if row["flops"] is not None:
            costs = f"{row['flops']:8.2e}  {readable(row['memory_bytes']):>8}  {row['hours']:11.3g}"
        measured = "" if row["measured_hours"] is None else f", trained in {row['measured_hours']:.3g} h"
        lines.append(f"{row['number']:4}  {row['id']:32}  {row['kind']:16}  {costs}  {state}{measured}")
    return lines


def budget_lines(budget: Mapping[str, Any]) -> list[str]:
    """The output of `bertvision forecast`: a line per cell, the total, the ways to use several devices, assumptions."""
    device, total, walls = budget["device"], budget["total"], budget["wall_hours"]
    rates = ", ".join(f"{name} {rate:.3g}" for name, rate in device["tflops"].items())
    lines = [
        f"{device['count']} {device['name']}: TFLOP/s {rates} ({device['source']}), reached {device['efficiency']:g}",
        f"{'cell':32} {'windows':>11} {'tokens':>14} "
        + " ".join(f"{name:>9}" for name in ("FLOPs", "store", "memory", "hours", "$", "measured")),
    ]
    for row in [*budget["cells"], {"id": "total, one device", **total}]:
        measured = row.get("measured_hours")
        lines.append(
            f"{row['id'][:32]:32} {row['windows']:11,} {row['tokens']:14,} {row['flops']:9.2e} "
            f"{readable(row['store_bytes']):>9} {readable(row['memory_bytes']):>9} {row['hours']:9.3g} "
            f"{row['dollars']:9.2f} {'' if measured is None else f'{measured:.3g}'}".rstrip()
        )
        lines += [
            f"    {part:28} {'':26} {work['flops']:9.2e} {'':19} {work['seconds'] / 3600:9.3g}"
            for part, work in row.get("parts", {}).items()
            if work["flops"] and len(budget["cells"]) <= 8
        ]
    if device["count"] > 1:
        ways = {"cells": "a cell per device at a time", "torchrun": "all devices share each cell"}
        lines += [
            f"{device['count']} devices, {text}: {walls[way]:.3g} hours, ${budget['wall_dollars'][way]:.2f}"
            for way, text in ways.items()
        ]
    return [*lines, *(f"note: {note}" for note in budget["notes"])]


@contextmanager
def download_bar(name: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, if that is a terminal; yields a function of (bytes received, bytes in all)."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        yield lambda received, size: bar.update(task, completed=received, total=size)
