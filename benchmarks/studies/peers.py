"""The same search by gputui, by Optuna alone with a subprocess per trial, and by Ray Tune: ``python -m
benchmarks.studies.peers [NAME…] [--ray-python FILE] [--kills N] [--json FILE]``.

Each searches the planted space with TPE and no pruner, once undisturbed and once while processes are killed: two of
three times one that trains, else one that steers (of gputui the agent or the study's process). What died and is not
started again by itself is started again after two seconds, as a person would. Ray needs an interpreter of its own that
has ``ray[tune]`` and Optuna; it is no dependency of gputui.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks import figures
from benchmarks.alone import end_tidily
from benchmarks.processes import family, machine_load, memory
from benchmarks.studies import planted
from benchmarks.studies.lab import PLANTED_SPACE, Lab, lab

HERE = Path(__file__).parent
AGAIN_SECONDS = 2.0
END_SECONDS = 600.0


@dataclass(frozen=True)
class Search:
    """``seconds`` are those of a step; a trial has as many steps as the planted training."""

    trials: int = 16
    slots: int = 4
    seconds: float = 0.5
    seed: int = 1

    @property
    def ideal_seconds(self) -> float:
        return self.trials / self.slots * planted.STEPS * self.seconds


@dataclass(frozen=True)
class Outcome:
    """``lost`` are trials without a value; ``rss_bytes`` the most that the steering processes took together."""

    wall_seconds: float
    overhead_percent: float
    best: float | None
    complete: int
    lost: int
    killed_training: int
    killed_steering: int
    started_by_hand: int
    rss_bytes: int


class Peer(Protocol):
    """One way to search, begun once. PIDs are those of living processes."""

    def start(self) -> None: ...
    def is_over(self) -> bool: ...
    def needs_a_hand(self) -> bool: ...
    def training(self) -> list[int]: ...
    def steering(self) -> list[int]: ...
    def result(self) -> dict[str, Any]: ...


def run(peer: Peer, search: Search, kills: int) -> Outcome:
    """A search to its end, with so many kills spread over the time that it would take undisturbed."""
    chance = random.Random(search.seed)
    began = time.monotonic()
    at = sorted(chance.uniform(0.1, 1.0) * search.ideal_seconds for _ in range(kills))
    training = steering = by_hand = rss = 0
    peer.start()
    down_since: float | None = None
    while not peer.is_over():
        now = time.monotonic() - began
        if now > search.ideal_seconds + END_SECONDS:
            raise TimeoutError("the search did not end")
        with suppress(OSError):
            rss = max(rss, memory(peer.steering()).rss_bytes)
        if at and now >= at[0]:
            is_steering = (training + steering) % 3 == 2
            victims = peer.steering() if is_steering else peer.training()
            if victims:
                at.pop(0)
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(victims), signal.SIGKILL)
                training += not is_steering
                steering += is_steering
        if not peer.needs_a_hand():
            down_since = None
        elif down_since is None:
            down_since = now
        elif now - down_since >= AGAIN_SECONDS:
            peer.start()
            by_hand += 1
            down_since = None
        time.sleep(0.2)
    wall = time.monotonic() - began
    result = peer.result()
    return Outcome(
        wall,
        100 * (wall / search.ideal_seconds - 1),
        result["best"],
        complete=result["complete"],
        lost=search.trials - result["complete"],
        killed_training=training,
        killed_steering=steering,
        started_by_hand=by_hand,
        rss_bytes=rss,
    )


class Gputui:
    """A study on simulated GPUs; its agent is there already, as on a workstation."""

    def __init__(self, home: Lab, search: Search) -> None:
        self.home = home
        self.search = search
        self.study: str | None = None
        self._steered = 0

    def start(self) -> None:
        if self.study is not None:
            self.home.gputui("agent", "start")
            return
        self.study = self.home.begin(
            f"profile: ./planted.yaml\n{PLANTED_SPACE}\nobjective: {{metric: loss}}\nsampler: tpe\n"
            f"budget: {{trials: {self.search.trials}}}\nparams: {{seconds: {self.search.seconds}}}\n"
            f"seed: {self.search.seed}\n"
        )

    def is_over(self) -> bool:
        return self.study is not None and self.home.study_state(self.study) != "running"

    def needs_a_hand(self) -> bool:
        return self.home.agent() is None and self.home.study_process(self.study or "") is None

    def training(self) -> list[int]:
        live = self.home.rows("SELECT run_id FROM runs WHERE state IN ('starting', 'running')")
        return [process.pid for (run_id,) in live for process in self.home.marked(run_id)]

    def steering(self) -> list[int]:
        """The agent, then the study's process."""
        processes = [self.home.agent(), self.home.study_process(self.study or "")]
        return [process.pid for process in processes if process is not None]

    def result(self) -> dict[str, Any]:
        values = [trial["value"] for trial in self.home.trials(self.study or "") if trial["state"] == "complete"]
        return {"complete": len(values), "best": min(values, default=None)}


class Script:
    """A search that one script steers, and that goes on where the script is started again."""

    def __init__(self, script: str, python: str, folder: Path, search: Search, training: str) -> None:
        """``training`` is in the command line of each process that trains."""
        arguments = (folder, search.trials, search.slots, search.seconds, search.seed)
        self.command = [python, str(HERE / script), *map(str, arguments)]
        self.folder = folder
        self.needle = training.encode()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "output.log").open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, start_new_session=True)

    def is_over(self) -> bool:
        return self.process is not None and self.process.poll() is not None and self._result.exists()

    def needs_a_hand(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def training(self) -> list[int]:
        return [pid for pid in self._family() if self.needle in _command_line(pid)]

    def steering(self) -> list[int]:
        return [] if self.process is None or self.process.poll() is not None else [self.process.pid]

    def result(self) -> dict[str, Any]:
        return dict(json.loads(self._result.read_text()))

    def close(self) -> None:
        for pid in self._family():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    @property
    def _result(self) -> Path:
        return self.folder / "result.json"

    def _family(self) -> list[int]:
        return [] if self.process is None else family([self.process.pid])


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@contextmanager
def gputui(search: Search) -> Iterator[Peer]:
    with lab(search.slots) as home:
        yield Gputui(home, search)


@contextmanager
def script(search: Search, name: str, python: str, training: str) -> Iterator[Peer]:
    folder = Path(tempfile.mkdtemp(prefix="gputui-peer-"))
    peer = Script(name, python, folder, search, training)
    try:
        yield peer
    finally:
        peer.close()
        shutil.rmtree(folder, ignore_errors=True)


def opened(name: str, search: Search, ray_python: str | None) -> Any:
    match name:
        case "gputui":
            return gputui(search)
        case "optuna":
            return script(search, "optuna_alone.py", sys.executable, "planted.py")
        case _:
            assert ray_python is not None
            return script(search, "ray_tune.py", ray_python, "ray::ImplicitFunc")


NAMES = {"gputui": "gputui", "optuna": "Optuna, a subprocess per trial", "ray": "Ray Tune"}


def main(argv: list[str] | None = None) -> int:
    """The exit status: 1 where a search did not end."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies.peers", description="The same search by others."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(NAMES)}; else all")
    parser.add_argument("--ray-python", metavar="FILE", help="an interpreter with ray[tune] and Optuna")
    parser.add_argument("--trials", type=int, default=Search.trials)
    parser.add_argument("--seconds", type=float, default=Search.seconds, help="of a step; a trial has 27")
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=Search.seed)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.names if name not in NAMES]:
        parser.error(f"{unknown[0]} is not known; there are {', '.join(NAMES)}")
    end_tidily()
    search = Search(trials=args.trials, seconds=args.seconds, seed=args.seed)
    names = [name for name in args.names or NAMES if name != "ray" or args.ray_python]
    trial_seconds = planted.STEPS * search.seconds
    print(f"{search.trials} trials of {trial_seconds:.1f} s on {search.slots} slots, load {machine_load():.2f}")
    rows = [["", "kills", "wall", "overhead", "best", "complete", "lost", "by hand", "memory"]]
    outcomes: dict[str, dict[str, Any]] = {}
    failed = False
    for name in names:
        for kills in (0, args.kills):
            print(f"{name} with {kills} kills …", file=sys.stderr, flush=True)
            try:
                with opened(name, search, args.ray_python) as peer:
                    outcome = run(peer, search, kills)
            except TimeoutError as error:
                print(f"{name} with {kills} kills: {error}")
                failed = True
                continue
            outcomes[f"{name} {kills}"] = asdict(outcome)
            rows.append(
                [
                    NAMES[name], str(outcome.killed_training + outcome.killed_steering),
                    figures.with_unit(outcome.wall_seconds, "s"), figures.with_unit(outcome.overhead_percent, "%"),
                    figures.with_unit(outcome.best, ""), str(outcome.complete), str(outcome.lost),
                    str(outcome.started_by_hand), figures.with_unit(float(outcome.rss_bytes), "MB"),
                ]
            )  # fmt: skip
    print(f"\n{figures.layout(rows, text_columns=(0,))}\n\nload {machine_load():.2f}")
    if args.json is not None:
        args.json.write_text(json.dumps(outcomes, indent=2) + "\n", "utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
