"""Runs all benches of states and training, and writes what they found: results.json, and the table in README.md.

python bench/run.py [--quick]        --quick: one small round of each, nothing is written
"""

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
BENCHES = ("finetune", "tap", "bank", "store", "epochs", "decode")
MARKS = "<!-- results -->", "<!-- end of results -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small round of each; nothing is written")
    given = parser.parse_args()
    ratios: dict[str, float] = {}
    lines: list[str] = []
    for name in BENCHES:
        found = run(name, given.quick)
        print(*found["lines"], sep="\n", flush=True)
        ratios |= found["ratios"]
        lines += found["lines"]
        if not given.quick:  # after each, so that what took minutes is not lost with what comes after
            write(ratios, lines)


def write(ratios: dict[str, float], lines: list[str]) -> None:
    (HERE / "results.json").write_text(json.dumps(ratios, indent=2) + "\n", encoding="utf-8")
    page = HERE / "README.md"
    page.write_text(with_results(page.read_text(encoding="utf-8"), table(lines)), encoding="utf-8")


def run(name: str, quick: bool) -> dict:
    """What one bench found, in a process of its own, so that none inherits another's memory or threads."""
    command = [sys.executable, str(HERE / f"{name}.py"), "--json", *(["--quick"] if quick else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"bench/{name}.py failed; its error stands above")
    return json.loads(done.stdout.splitlines()[-1])


def table(lines: list[str]) -> str:
    """The results as a table, with day and machine."""
    rows = [["bench", "ratio", "wanted", "", "what was measured"], ["---"] * 5]
    for line in lines:
        name, ratio, wanted, verdict, says = re.fullmatch(r"(\w+): (\S+), wanted (.+?): (\w+); (.*)", line).groups()
        rows.append([f"`{name}`", ratio, wanted, verdict, says])
    machine = f"{processor()}, {os.cpu_count()} cores, torch {torch.__version__}"
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return f"{day}, {machine}:\n\n" + "\n".join("| " + " | ".join(row) + " |" for row in rows)


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
