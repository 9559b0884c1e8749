"""The chaos drill as a command."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.chaos import disk
from tests.faults.chaos.drill import Chaos
from tests.machine import Machine


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description="Break everything at random, and check what is left.")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--digits", type=int, default=3, choices=range(4), help="real trainings among the three runs")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="copy the home there when something does not hold")
    options = parser.parse_args()
    print(f"chaos with --seed {options.seed}, {options.rounds} rounds", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        runtime, folder = Path(name) / "runtime", Path(name) / "small"
        runtime.mkdir(mode=0o700)
        folder.mkdir()
        os.environ["XDG_RUNTIME_DIR"] = str(runtime)
        is_small = disk.mount(folder)
        if not is_small:
            print("no small file system can be mounted here: the disk is never full")
        machine = Machine(folder)
        chaos = Chaos(machine, options.seed, digits=options.digits, has_small_disk=is_small)
        try:
            chaos.rage(options.rounds)
            ends = chaos.check()
            given_up = machine.rows("SELECT run_id, reason FROM runs WHERE state != 'succeeded'")
        except BaseException:
            if options.keep is not None:
                shutil.copytree(folder, options.keep, ignore=shutil.ignore_patterns("ballast"))
            raise
        finally:
            chaos.victims.close_screen()
            machine.close()
            if is_small:
                disk.unmount(folder)
    for run_id, reason in given_up:
        print(f"{run_id} was given up: {reason}")
    for counts in (chaos.done, chaos.checked):
        for what, count in sorted(counts.items()):
            print(f"{count:5d}  {what}")
    clients = chaos.clients
    print(f"{len(clients.accepted)} runs launched, {len(clients.refused)} refused, {len(clients.removed)} removed")
    told = ", ".join(f"{count} {state}" for state, count in sorted(ends.items()))
    print(f"{told}; nothing lost, doubled, mixed up or left over; {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
