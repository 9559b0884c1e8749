"""Measures the trainer by itself: ``python -m benchmarks.trainer [PART…] [--json FILE]``; gputui need not be there."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path

from benchmarks import figures
from benchmarks.alone import end_tidily
from benchmarks.processes import machine_load
from benchmarks.trainer.parts import PARTS, measure
from benchmarks.trainer.rows import NAME, TRAINER_FIGURES


def main(argv: list[str] | None = None) -> int:
    """The exit status: 1 when something failed, else 0, whether or not it was there and the aims were reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trainer", description="Measures the trainer.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"which: {', '.join(PARTS)}; else all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything measured to this file")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.parts if name not in PARTS]:
        parser.error(f"there is no part named {unknown[0]}; there are {', '.join(PARTS)}")
    end_tidily()
    print(
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}, "
        f"load {machine_load():.2f}",
        flush=True,
    )
    results = {NAME: {**measure(args.parts), "load_after": machine_load()}}
    print(f"\n{render(results)}\n")
    failed = figures.texts_under(results, "failed")
    for text in (
        *(f"could not be measured: {text}" for text in failed),
        *(f"left out: {text}" for text in figures.texts_under(results, "why_not")),
        *(f"missed: {text}" for text in figures.missed(TRAINER_FIGURES, results)),
    ):
        print(text)
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 1 if failed else 0


def render(results: figures.Results) -> str:
    """The table of the parts that were asked for."""
    measured = results[NAME] or {}
    chosen = [figure for figure in figures.asked_for(TRAINER_FIGURES, results) if figure.path[0] in measured]
    return figures.layout(
        [["figure", "trainer", "aim", "reached"], *(figures.row(figure, results) for figure in chosen)]
    )


if __name__ == "__main__":
    sys.exit(main())
