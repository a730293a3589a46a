"""Runs the benches of states and training, and writes what they found: results.json, and the table in README.md.

python bench/run.py [--quick] [NAME ...]        --quick: one small round of each, nothing is written

With names, only those are run; what others have found before stays as it is, with its day and machine.
"""

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results.json", HERE / "README.md"
BENCHES = ("finetune", "tap", "bank", "store", "epochs", "decode")
MARKS = "<!-- results -->", "<!-- end of results -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHES)}; all, if none is given")
    parser.add_argument("--quick", action="store_true", help="one small round of each; nothing is written")
    given = parser.parse_args()
    if unknown := set(given.names) - set(BENCHES):
        parser.error(f"no such bench: {', '.join(sorted(unknown))}; there is: {', '.join(BENCHES)}")
    ratios: dict[str, float] = json.loads(RESULTS.read_text(encoding="utf-8")) if given.names else {}
    rows = rows_of(PAGE.read_text(encoding="utf-8")) if given.names else {}
    for name in given.names or BENCHES:
        found = run(name, given.quick)
        print(*found["lines"], sep="\n", flush=True)
        ratios |= found["ratios"]
        rows |= dict(map(row_of, found["lines"]))
        if not given.quick:  # after each, so that what took minutes is not lost with what comes after
            RESULTS.write_text(json.dumps(ratios, indent=2) + "\n", encoding="utf-8")
            PAGE.write_text(with_results(PAGE.read_text(encoding="utf-8"), table(rows)), encoding="utf-8")


def run(name: str, quick: bool) -> dict:
    """What one bench found, in a process of its own, so that none inherits another's memory or threads."""
    command = [sys.executable, str(HERE / f"{name}.py"), "--json", *(["--quick"] if quick else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"bench/{name}.py failed; its error stands above")
    return json.loads(done.stdout.splitlines()[-1])


def row_of(line: str) -> tuple[str, str]:
    """The name of a ratio, and its row in the table, with the day and the machine of now."""
    name, ratio, wanted, verdict, says = re.fullmatch(r"(\w+): (\S+), wanted (.+?): (\w+); (.*)", line).groups()
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return name, f"| `{name}` | {ratio} | {wanted} | {verdict} | {says} | {day} | {machine()} |"


def rows_of(page: str) -> dict[str, str]:
    """The rows that stand in a page, by name."""
    results = page.partition(MARKS[0])[2].partition(MARKS[1])[0]
    return {name: row for row in results.splitlines() for name in re.findall(r"^\| `(\w+)` \|", row)}


def table(rows: Mapping[str, str]) -> str:
    """The results as a table."""
    titles = ("bench", "ratio", "wanted", "", "what was measured", "day", "machine")
    head = [f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"]
    return "\n".join([*head, *rows.values()])


def machine() -> str:
    return f"{processor()}, {os.cpu_count()} cores, torch {torch.__version__}"


def processor() -> str:
    info = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*: (.+)", info.read_text()) if info.exists() else None
    return named[1] if named else platform.machine()


def with_results(page: str, results: str) -> str:
    """The page with what stands between the marks replaced."""
    before, _, rest = page.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    return f"{before}{MARKS[0]}\n{results}\n{MARKS[1]}{after}"


if __name__ == "__main__":
    main()
