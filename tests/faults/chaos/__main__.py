"""The chaos drills as a command."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.chaos import disk
from tests.faults.chaos.drill import Chaos
from tests.faults.chaos.studies import StudyChaos
from tests.machines import Machine


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description="Break everything at random, and check what is left.")
    parser.add_argument("--rounds", type=int, default=100, help="among runs; 0 for none")
    parser.add_argument("--study-kills", type=int, default=60, help="while a study of 32 trials goes on; 0 for none")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--digits", type=int, default=3, choices=range(4), help="real trainings among the three runs")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="copy the home there when something does not hold")
    options = parser.parse_args()
    print(f"chaos with --seed {options.seed}", flush=True)
    if options.rounds:
        _among_runs(options.rounds, options.seed, options.digits, options.keep)
    if options.study_kills:
        _in_studies(options.study_kills, options.seed, options.keep)
    return 0


def _among_runs(rounds: int, seed: int, digits: int, keep: Path | None) -> None:
    began = time.monotonic()
    with _machine(keep, small=True) as (machine, is_small):
        if not is_small:
            print("no small file system can be mounted here: the disk is never full")
        chaos = Chaos(machine, seed, digits=digits, has_small_disk=is_small)
        try:
            chaos.rage(rounds)
            ends = chaos.check()
            given_up = machine.rows("SELECT run_id, reason FROM runs WHERE state != 'succeeded'")
        finally:
            chaos.victims.close_screen()
    for run_id, reason in given_up:
        print(f"{run_id} was given up: {reason}")
    for counts in (chaos.done, chaos.checked):
        for what, count in sorted(counts.items()):
            print(f"{count:5d}  {what}")
    clients = chaos.clients
    print(f"{len(clients.accepted)} runs launched, {len(clients.refused)} refused, {len(clients.removed)} removed")
    tally = ", ".join(f"{count} {state}" for state, count in sorted(ends.items()))
    print(f"{tally}; nothing lost, doubled, mixed up or left over; {time.monotonic() - began:.0f} s", flush=True)


def _in_studies(kills: int, seed: int, keep: Path | None) -> None:
    began = time.monotonic()
    with _machine(keep, small=False) as (machine, _):
        chaos = StudyChaos(machine, seed)
        chaos.rage(kills)
        ends = chaos.check()
    for what, count in sorted(chaos.killed.items()):
        print(f"{count:5d}  {what} killed")
    for what, count in sorted(chaos.checked.items()):
        print(f"{count:5d}  {what}")
    tally = ", ".join(f"{count} {state}" for state, count in sorted(ends.items()))
    print(
        f"{chaos.killed.total()} kills, {len(chaos.studies)} studies of {chaos.trials} trials: {tally}; each trial has "
        f"one verdict, no GPU had two, no point and no line was lost; {time.monotonic() - began:.0f} s",
        flush=True,
    )


@contextmanager
def _machine(keep: Path | None, *, small: bool) -> Iterator[tuple[Machine, bool]]:
    """A machine, and whether its folder is a small file system, as far as that may be made."""
    with tempfile.TemporaryDirectory() as name:
        runtime = Path(name) / "runtime"
        folder = Path(name) / "home"
        runtime.mkdir(mode=0o700)
        folder.mkdir()
        os.environ["XDG_RUNTIME_DIR"] = str(runtime)
        is_small = small and disk.mount(folder)
        machine = Machine(folder)
        try:
            yield machine, is_small
        except BaseException:
            if keep is not None:
                shutil.copytree(folder, keep, ignore=shutil.ignore_patterns("ballast", ".doorbell"), dirs_exist_ok=True)
            raise
        finally:
            machine.close()
            if is_small:
                disk.unmount(folder)


if __name__ == "__main__":
    sys.exit(main())
