"""Measures recovery: ``python -m benchmarks.recovery [KIND…] [--json FILE]``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
import time
from pathlib import Path

from benchmarks import figures
from benchmarks.alone import end_tidily
from benchmarks.processes import machine_load
from benchmarks.recovery.drilling import Drilled, drill
from gputui.recovery.kinds import KINDS


def main(argv: list[str] | None = None) -> int:
    """The exit status: 0 when every kind was detected and met with the right action, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description="Measures how runs recover.")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="which to provoke; else every kind")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything measured to this file")
    args = parser.parse_args(argv)
    if unknown := [kind for kind in args.kinds if kind not in KINDS]:
        parser.error(f"there is no kind named {unknown[0]}; there are {', '.join(KINDS)}")
    end_tidily()
    began_at = time.monotonic()
    print(
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}, "
        f"load {machine_load():.2f}",
        flush=True,
    )
    drilled = []
    for kind in args.kinds or KINDS:
        print(f"provoking {kind} …", file=sys.stderr, flush=True)
        drilled.append(drill(kind))
    print(f"\n{render(drilled)}\n")
    for line in summary(drilled):
        print(line)
    print(f"took {time.monotonic() - began_at:.0f} s, load {machine_load():.2f}")
    if args.json is not None:
        args.json.write_text(json.dumps([dataclasses.asdict(one) for one in drilled], indent=2) + "\n", "utf-8")
    return 0 if all(one.detected and one.right for one in drilled) else 1


def render(drilled: list[Drilled]) -> str:
    """A line for each kind."""
    heading = ["kind", "detected after", "next first step", "steps lost", "expected", "taken", "right", "how"]
    rows = [
        [
            one.kind,
            figures.with_unit(one.detect_seconds, "s") if one.detected else "NO",
            "" if one.next_step_seconds is None else figures.with_unit(one.next_step_seconds, "s"),
            "" if one.steps_lost is None else str(one.steps_lost),
            one.expected,
            one.taken,
            "yes" if one.right else "NO",
            one.how,
        ]
        for one in drilled
    ]
    return figures.layout([heading, *rows], words=(0, 4, 5, 6, 7))


def summary(drilled: list[Drilled]) -> list[str]:
    """How many were detected and met rightly, and why the others were not."""
    right = sum(one.right for one in drilled)
    detected = sum(one.detected for one in drilled)
    lines = [f"{len(drilled)} kinds: {detected} detected, {right} met with the right action"]
    return lines + [f"{one.kind}: {one.trouble}" for one in drilled if one.trouble is not None]


if __name__ == "__main__":
    sys.exit(main())
