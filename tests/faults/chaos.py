"""Chaos: three runs at once while random processes of every kind are killed, stopped and continued.

``make chaos`` runs it for minutes; tests/faults/test_chaos.py for seconds. Whatever was done, afterwards every run has
succeeded or was ended by its policy, every metrics line is stored exactly once, the database is intact, and no process
and no lease is left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pexpect

from gputui.runs.identity import ProcessIdentity, identify, is_alive, send_signal
from tests.machine import Machine

OVER = ("succeeded", "failed", "stopped")
# Ranks that lost another one may need torchrun's 30 s to end (docs/recovery.md, "Known limits").
END_SECONDS = 240.0
# What killing and stopping processes may be taken for: never for something that the program did.
DONE_HERE = {"killed", "shim_lost", "peer_lost"}
RECOVERY = "recovery: {policy: aggressive, max_attempts: 50, backoff: {base: 0.1, max: 0.5}}\n"


@dataclass
class Chaos:
    """``digits`` of the three runs of a wave are real DDP trainings under torchrun, the others count steps on a
    simulated GPU each."""

    machine: Machine
    seed: int
    digits: int = 1
    steps: int = 60
    done: Counter[str] = field(default_factory=Counter)
    runs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.stopped: list[tuple[float, ProcessIdentity]] = []
        self.screen: pexpect.spawn | None = None
        self.machine.workspace.scenario.write_text("gpus: 4\nmemory: 80GiB\n")
        self.counting = self.machine.profile("counting", Path(self.machine.profile()).read_text() + RECOVERY)

    # --- what is broken -------------------------------------------------------------------------------------------

    def rage(self, rounds: int) -> None:
        """Break something ``rounds`` times, then let everything come to its end."""
        wave = 0
        while sum(self.done.values()) < rounds:
            self.launch(wave)
            wave += 1
            while sum(self.done.values()) < rounds and not self.all_over():
                self.break_something()
                self.wait(self.chance.uniform(0.05, 0.6))
        self.wait(2.0)
        for _, identity in self.stopped:
            send_signal(identity, signal.SIGCONT)
        self.close_screen()
        deadline = time.monotonic() + END_SECONDS
        while not self.all_over():
            self.need_agent()
            assert time.monotonic() < deadline, self.machine.rows("SELECT run_id, state, reason, waiting_for FROM runs")
            time.sleep(0.1)

    def launch(self, wave: int) -> None:
        for number in range(3):
            name = f"wave{wave}-{number}"
            steps = ("--set", f"steps={self.steps}")
            if number < self.digits:
                changes = ("--set", "checkpoint_every=5", "--set", "lr=0.01")
                self.machine.gputui("run", "digits-ddp", "--name", name, *steps, *changes)
            else:
                pace = ("--set", "seconds=0.1", "--gpus", "1")
                self.machine.gputui("run", self.counting, "--name", name, *steps, *pace)
            self.runs.append(f"{name}-1")

    def break_something(self) -> None:
        victims: dict[str, Callable[[], ProcessIdentity | None]] = {
            "worker": self.a_worker,
            "launcher": self.a_launcher,
            "shim": self.a_shim,
            "agent": self.machine.agent,
            "screen": self.the_screen,
        }
        kind = self.chance.choice(sorted(victims))
        victim = victims[kind]()
        if victim is None:
            return
        if self.chance.random() < 0.5:
            send_signal(victim, signal.SIGKILL)
            self.done[f"{kind} killed"] += 1
            if kind == "agent":
                self.wait(self.chance.uniform(0.0, 1.0))
                self.need_agent()
        elif send_signal(victim, signal.SIGSTOP):
            self.done[f"{kind} stopped and continued"] += 1
            self.stopped.append((time.monotonic() + self.chance.uniform(0.1, 1.5), victim))

    def wait(self, seconds: float) -> None:
        """Let time pass, and continue what was stopped when its time has come."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            due = [entry for entry in self.stopped if entry[0] <= time.monotonic()]
            for entry in due:
                send_signal(entry[1], signal.SIGCONT)
                self.stopped.remove(entry)
            time.sleep(0.02)

    # --- whom it hits ---------------------------------------------------------------------------------------------

    def a_worker(self) -> ProcessIdentity | None:
        ranks = [pid for run_id in self.runs[-3:] for pid in self.machine.ranks(run_id).values()]
        return identify(self.chance.choice(ranks)) if ranks else None

    def a_launcher(self) -> ProcessIdentity | None:
        folders = (self.machine.workspace.run_dir(run_id) / "attempts" for run_id in self.runs[-3:])
        records = [json.loads(path.read_text()) for folder in folders for path in folder.glob("*/started.json")]
        alive = [
            found
            for record in records
            if is_alive(found := ProcessIdentity(record["pid"], record["start_ticks"], record["boot_id"]))
        ]
        return self.chance.choice(alive) if alive else None

    def a_shim(self) -> ProcessIdentity | None:
        rows = self.machine.rows("SELECT shim_pid, shim_start_ticks, boot_id FROM attempts WHERE shim_pid IS NOT NULL")
        alive = [identity for row in rows if is_alive(identity := ProcessIdentity(*row))]
        return self.chance.choice(alive) if alive else None

    def the_screen(self) -> ProcessIdentity | None:
        if self.screen is None or not self.screen.isalive():
            self.close_screen()
            words = ["-m", "gputui", "--home", str(self.machine.folder / "home")]
            environment = {**os.environ, "TERM": "xterm-256color"}
            self.screen = pexpect.spawn(sys.executable, words, dimensions=(30, 100), env=environment)
        return identify(self.screen.pid)

    def close_screen(self) -> None:
        if self.screen is not None:
            self.screen.close(force=True)
            self.screen = None

    def need_agent(self) -> None:
        if self.machine.agent() is None:
            self.machine.gputui("agent", "start")

    def all_over(self) -> bool:
        return all(self.machine.state(run_id) in OVER for run_id in self.runs)

    # --- what must hold -------------------------------------------------------------------------------------------

    def check(self) -> Counter[str]:
        """Raises AssertionError where something was lost, doubled or left over. Returns how the runs ended."""
        ends: Counter[str] = Counter()
        for run_id in self.runs:
            ends[self.check_run(run_id)] += 1
        deadline = time.monotonic() + 60
        while left := [run_id for run_id in self.runs if self.machine.marked(run_id)]:
            assert time.monotonic() < deadline, f"processes left of {left}"
            time.sleep(0.1)
        while leases := self.machine.rows("SELECT * FROM leases"):
            assert time.monotonic() < deadline, leases
            time.sleep(0.1)
        assert self.machine.rows("PRAGMA integrity_check") == [("ok",)]
        return ends

    def check_run(self, run_id: str) -> str:
        ((state, reason),) = self.machine.rows("SELECT state, reason FROM runs WHERE run_id = ?", run_id)
        assert state == "succeeded" or reason, f"{run_id} is {state} without a reason"
        for attempt, kind, summary, evidence in self.machine.rows(
            "SELECT attempt, kind, summary, evidence FROM incidents WHERE run_id = ?", run_id
        ):
            assert kind in DONE_HERE, f"{run_id}, attempt {attempt}: {kind}: {summary}; {evidence}"
        ((verdict, why),) = self.machine.rows(
            "SELECT verdict, reason FROM decisions WHERE run_id = ? ORDER BY decision_id DESC LIMIT 1", run_id
        ) or [(None, None)]
        assert state == "succeeded" or (verdict == "stop" and reason.endswith(why)), f"{run_id}: {reason}; {why}"
        metrics = self.machine.workspace.run_dir(run_id) / "metrics.jsonl"
        written = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        ((stored, rejected),) = self.machine.rows(
            "SELECT (SELECT count(*) FROM metrics JOIN metric_sources USING (source_id) WHERE run_id = ?1), "
            "(SELECT coalesce(sum(rejected_count), 0) FROM metric_sources WHERE run_id = ?1)",
            run_id,
        )
        assert stored + rejected == written, f"{run_id}: {written} lines, {stored} stored and {rejected} refused"
        by_attempt: dict[int, list[int]] = {}
        for attempt, step in self.machine.steps(run_id):
            by_attempt.setdefault(attempt, []).append(step)
        for attempt, steps in by_attempt.items():
            assert steps == list(range(steps[0], steps[0] + len(steps))), f"{run_id}, attempt {attempt}: {steps}"
        unfinished = self.machine.rows("SELECT number FROM attempts WHERE run_id = ? AND ended_at IS NULL", run_id)
        assert unfinished == [], f"{run_id}: attempts without an end: {unfinished}"
        return str(state)


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--digits", type=int, default=3, choices=range(4), help="real trainings among the three runs")
    options = parser.parse_args()
    print(f"chaos with --seed {options.seed}, {options.rounds} rounds", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        runtime = Path(folder) / "runtime"
        runtime.mkdir(mode=0o700)
        os.environ["XDG_RUNTIME_DIR"] = str(runtime)
        machine = Machine(Path(folder))
        try:
            chaos = Chaos(machine, options.seed, digits=options.digits)
            chaos.rage(options.rounds)
            ends = chaos.check()
            for run_id, reason in machine.rows("SELECT run_id, reason FROM runs WHERE state != 'succeeded'"):
                print(f"{run_id} was given up: {reason}")
        finally:
            machine.close()
    for what, count in sorted(chaos.done.items()):
        print(f"{count:5d}  {what}")
    told = ", ".join(f"{count} {state}" for state, count in sorted(ends.items()))
    print(f"{len(chaos.runs)} runs: {told}; nothing lost, doubled or left over; {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
