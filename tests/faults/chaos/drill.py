"""The drill: what is launched, what is broken, and what must hold afterwards."""

from __future__ import annotations

import random
import shutil
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable

from tests.faults.chaos.clients import Clients
from tests.faults.chaos.disk import Disk
from tests.faults.chaos.evidence import check_run, need_none
from tests.faults.chaos.victims import Victims
from tests.faults.jobs import SCRIPTS
from tests.machines import Machine

OVER = ("succeeded", "failed", "stopped")
AT_ONCE = 3
# The most runs at a time, with those that users launch in between; more would only wait.
MOST = 8
# Ranks that lost another one may need torchrun's 30 s to end.
END_SECONDS = 240.0
RECOVERY = (
    "recovery: {policy: aggressive, max_attempts: 50, backoff: {base: 0.1, max: 0.5}, "
    "ladders: {disk_full: [wait_disk: 1, wait: 5, wait: 5, wait: 5]}}"
)
PROFILE = """
name: {name}
launcher: python
script: counts.py
python: {python}
gpus: 1
params: {{steps: 60, seconds: 0.1, rewrite: {rewrite}, folder: "{shared}"}}
metrics: {{source: {source}, path: "{{run_dir}}/{file}"}}
checkpoints: {{dir: "{folder}", pattern: "step_*.pt", resume: "--resume {{checkpoint}}"}}
{recovery}
"""
# How the script rewrites its metrics, their format, and the folder of its checkpoints. All runs of "shared" have one
# folder, and so have those of "turns", which live one after the other, so that each resumes from its own checkpoints.
TURNS = "turns"
KINDS = {
    "lines": ("never", "jsonl", ""),
    "renamed": ("rename", "csv", ""),
    "in-place": ("in_place", "csv", ""),
    "shared": ("never", "jsonl", "shared"),
    TURNS: ("never", "jsonl", TURNS),
}


class Chaos:
    """``digits``: how many of the runs at a time are real DDP trainings under torchrun; the others count steps on a
    simulated GPU each. ``has_small_disk``: the machine's folder is a file system that may be filled."""

    def __init__(
        self, machine: Machine, seed: int, *, digits: int = 1, steps: int = 60, has_small_disk: bool = False
    ) -> None:
        self.machine = machine
        self.digits = digits
        self.steps = steps
        self.chance = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.checked: Counter[str] = Counter()
        self.disk = Disk(machine.folder, self.chance) if has_small_disk else None
        self.clients = Clients(machine, self.chance)
        self.victims = Victims(machine, self.chance, self.live)
        machine.workspace.scenario.write_text("gpus: 4\nmemory: 80GiB\n")
        for name in ("counts.py", "title.py"):
            shutil.copy(SCRIPTS / name, machine.folder)
        self.profiles: dict[str, str] = {}
        for name, (rewrite, source, folder) in KINDS.items():
            path = machine.folder / f"{name}.yaml"
            file = "table.csv" if source == "csv" else "metrics.jsonl"
            path.write_text(
                PROFILE.format(
                    name=name,
                    python=sys.executable,
                    rewrite=rewrite,
                    source=source,
                    file=file,
                    recovery=RECOVERY,
                    shared=folder and machine.folder / folder,
                    folder=machine.folder / folder if folder else "{run_dir}/checkpoints",
                )
            )
            self.profiles[name] = str(path)

    # --- what is broken -----------------------------------------------------------------------------------------------

    def rage(self, rounds: int) -> None:
        """Break something ``rounds`` times, then let everything come to its end."""
        # Nothing can be asked for before there is a store.
        self.machine.gputui("agent", "start")
        while sum(self.done.values()) < rounds:
            if not self.clients.is_busy and len(self.live()) + self.clients.is_sending("run") < AT_ONCE:
                self.launch()
            what = self.break_something()
            if what is not None:
                self.done[what] += 1
            if what == "agent killed":
                # Whoever sends a command meanwhile starts one too.
                self.wait(self.chance.uniform(0.0, 1.0))
                self.need_agent()
            self.wait(self.chance.uniform(0.05, 0.6))
        self.wait(2.0)
        self.calm()

    def calm(self) -> None:
        """Undo what was stopped or filled, and let all runs end."""
        self.victims.release()
        if self.disk is not None:
            self.disk.free()
        deadline = time.monotonic() + END_SECONDS
        while not self.clients.finish() or self.live():
            if self.machine.agent() is None:
                self.need_agent()
            assert time.monotonic() < deadline, self.machine.rows("SELECT run_id, state, reason, waiting_for FROM runs")
            time.sleep(0.1)

    def launch(self) -> None:
        steps = ("--set", f"steps={self.steps}")
        if self.chance.random() * AT_ONCE < self.digits:
            self.clients.launch("digits-ddp", *steps, "--set", "checkpoint_every=5", "--set", "lr=0.01")
        else:
            kinds = [kind for kind in self.profiles if kind != TURNS or not self.has_turn()]
            # Half of the launches are of this kind, as only one of its runs may live at a time.
            kind = TURNS if TURNS in kinds and self.chance.random() < 0.5 else self.chance.choice(kinds)
            self.clients.launch(self.profiles[kind], *steps, kind=kind)

    def has_turn(self) -> bool:
        """Return whether a run of those that live one after the other is there, or may be soon."""
        names = {name for name, kind in self.clients.kinds.items() if kind == TURNS}
        return bool(self.clients.sent_about(names) or names & {run_id.rpartition("-")[0] for run_id in self.live()})

    def break_something(self) -> str | None:
        """Break something and name it; None where nothing could be broken."""
        ways: dict[Callable[[], str | None], int] = {self.victims.strike: 10, self.send_something: 5}
        if self.disk is not None:
            ways[self.disk.fill] = 1
        return self.chance.choices(list(ways), list(ways.values()))[0]()

    def send_something(self) -> str | None:
        if self.clients.is_busy:
            return None
        live = set(self.live())
        over = sorted(set(self.clients.runs()) - live)
        verb = self.chance.choice(["rm", "restart", "restart live", "resume", "run"])
        if verb == "run":
            if len(live) + self.clients.is_sending("run") >= MOST:
                return None
            self.launch()
        elif verb == "restart live":
            if not live:
                return None
            self.clients.restart(self.chance.choice(sorted(live)))
        elif not over:
            return None
        else:
            if verb != "rm" and self.has_turn():
                over = [run_id for run_id in over if self.clients.kinds.get(run_id.rpartition("-")[0]) != TURNS]
                if not over:
                    return None
            send = {"rm": self.clients.remove, "restart": self.clients.restart, "resume": self.clients.resume}[verb]
            send(self.chance.choice(over))
        return f"{verb} sent"

    def wait(self, seconds: float) -> None:
        """Let time pass, and undo what was done for a while when its time has come."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.victims.turn()
            if self.disk is not None:
                self.disk.turn()
            self.clients.turn()
            time.sleep(0.02)

    def need_agent(self) -> None:
        if not self.clients.is_sending("agent"):
            # An agent that was killed right away, or a disk that is full, makes it fail.
            self.clients.send("agent", "start")

    def live(self) -> list[str]:
        """The runs that are not over, of those that are known to be there."""
        try:
            states = dict(self.machine.rows("SELECT run_id, state FROM runs"))
        except sqlite3.OperationalError:
            states = {}
        return [run_id for run_id in self.clients.runs() if states.get(run_id) not in OVER]

    # --- what must hold -----------------------------------------------------------------------------------------------

    def check(self) -> Counter[str]:
        """Raises AssertionError where something was lost, doubled or left over. Returns how the runs ended."""
        self.clients.check_launches()
        runs = self.clients.runs()
        ends = Counter(check_run(self.machine, run_id, self.was_full, self.checked) for run_id in runs)
        need_none(self.machine, lambda: [run_id for run_id in runs if self.machine.marked(run_id)], "processes")
        need_none(self.machine, lambda: self.machine.rows("SELECT * FROM leases"), "leases")
        need_none(self.machine, self.clients.remains, "removed runs")
        assert self.machine.rows("PRAGMA integrity_check") == [("ok",)]
        assert self.machine.rows("PRAGMA foreign_key_check") == []
        return ends

    def was_full(self, at: float) -> bool:
        return self.disk is not None and self.disk.was_full(at)
