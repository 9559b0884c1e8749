"""Measures studies: ``python -m benchmarks.studies [PART…] [--trial-seconds N] [--kills N] [--json FILE]``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

from benchmarks import figures
from benchmarks.alone import end_tidily
from benchmarks.processes import machine_load
from benchmarks.studies.parts import PARTS, Size, measure
from benchmarks.studies.rows import FIGURES


def main(argv: list[str] | None = None) -> int:
    """The exit status: 1 when something could not be measured, else 0, whether or not the goals were reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studies", description="Measures studies.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"which: {', '.join(PARTS)}; else all")
    parser.add_argument(
        "--trial-seconds", type=float, default=Size.trial_seconds, metavar="N", help="of overhead (120)"
    )
    parser.add_argument("--kills", type=int, default=Size.kills, metavar="N", help="of the drill (200)")
    parser.add_argument("--seed", type=int, default=Size.drill_seed, help="of the kills")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything measured to this file")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.parts if name not in PARTS]:
        parser.error(f"there is no part named {unknown[0]}; there are {', '.join(PARTS)}")
    end_tidily()
    began = time.monotonic()
    print(
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}, "
        f"load {machine_load():.2f}",
        flush=True,
    )
    size = Size(trial_seconds=args.trial_seconds, kills=args.kills, drill_seed=args.seed)
    results = measure(args.parts, size)
    print(f"\n{render(results)}\n")
    failed = [f"could not be measured: {text}" for text in figures.texts_under(results, "failed")]
    left_out = [f"left out: {text}" for text in figures.texts_under(results, "why_not")]
    for line in [*failed, *left_out, *(f"missed: {text}" for text in figures.missed(FIGURES, results))]:
        print(line)
    print(f"took {time.monotonic() - began:.0f} s, load {machine_load():.2f}")
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=2) + "\n", "utf-8")
    return 1 if failed else 0


def render(results: figures.Results) -> str:
    """A line for each figure: the value, the goal, and whether it was reached."""
    rows = [figures.row(figure, results) for figure in figures.asked_for(FIGURES, results)]
    return figures.layout([["figure", "measured", "goal", "reached"], *rows])


if __name__ == "__main__":
    sys.exit(main())
