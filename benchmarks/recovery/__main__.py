"""Measures recovery: ``python -m benchmarks.recovery [KIND…] [--hours N] [--seed N] [--json FILE]``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
import time
from pathlib import Path

from benchmarks.alone import end_tidily
from benchmarks.processes import machine_load
from benchmarks.recovery import hours, report
from benchmarks.recovery.drilling import drill
from gputui.recovery.kinds import KINDS

HOURS = 10_000.0
BROKEN_RUNS = 40


def main(argv: list[str] | None = None) -> int:
    """The exit status: 0 when every kind was detected and met with the right action, and no healthy run gave an alarm,
    else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description="Measures how runs recover.")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="provoke only these, and simulate no hours")
    parser.add_argument("--hours", type=float, metavar="N", help=f"healthy hours to simulate ({HOURS:.0f}); 0 for none")
    parser.add_argument("--only-hours", action="store_true", help="provoke nothing")
    parser.add_argument("--seed", type=int, default=1, help="of the simulation")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything measured to this file")
    args = parser.parse_args(argv)
    if unknown := [kind for kind in args.kinds if kind not in KINDS]:
        parser.error(f"there is no kind named {unknown[0]}; there are {', '.join(KINDS)}")
    if args.hours is None:
        args.hours = 0.0 if args.kinds else HOURS
    end_tidily()
    began_at = time.monotonic()
    print(
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}, "
        f"load {machine_load():.2f}",
        flush=True,
    )
    drilled = []
    for kind in () if args.only_hours else args.kinds or KINDS:
        print(f"provoking {kind} …", file=sys.stderr, flush=True)
        drilled.append(drill(kind))
    if drilled:
        print(f"\n{report.drills(drilled)}\n", flush=True)
    healthy = None
    detections = []
    if args.hours:
        print(f"simulating {args.hours:.0f} healthy hours …", file=sys.stderr, flush=True)
        healthy = hours.healthy(args.hours, seed=args.seed)
        print(f"\n{report.healthy(healthy)}\n", flush=True)
        detections = [hours.found(fault, BROKEN_RUNS, seed=args.seed) for fault in hours.FAULTS]
        print(f"{report.detections(detections)}\n")
    print(f"took {time.monotonic() - began_at:.0f} s, load {machine_load():.2f}")
    if args.json is not None:
        everything = {
            "drills": [dataclasses.asdict(drill) for drill in drilled],
            "healthy": None if healthy is None else vars(healthy),
            "broken": [dataclasses.asdict(drill) for drill in detections],
        }
        args.json.write_text(json.dumps(everything, indent=2) + "\n", "utf-8")
    all_right = all(drill.detected and drill.right for drill in drilled)
    return 0 if all_right and (healthy is None or not healthy.false_alarms) else 1


if __name__ == "__main__":
    sys.exit(main())
