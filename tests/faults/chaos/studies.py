"""The drill of studies: agents, the study's process and its trials are killed while a study goes on."""

from __future__ import annotations

import json
import random
import shutil
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from gputui.runs import identity
from gputui.runs.identity import ProcessIdentity, is_alive, send_signal
from gputui.studies.rows import LOCK_FILE
from tests.faults.chaos.evidence import check_courses, check_lines, need_none, notes
from tests.faults.chaos.victims import Victims
from tests.faults.jobs import SCRIPTS
from tests.machines import Machine

GPUS = 4
PEAK_BYTES = 10 << 30
TRIALS = 32
RUNGS = 20
# The drill leaves the machine without an agent for so long at most; the study's process, if alive, starts one sooner.
ALONE_SECONDS = 8.0
# A study that has not ended after this time counts as stuck.
END_SECONDS = 600.0
VERDICTS = frozenset({"complete", "pruned"})

PROFILE = """
name: trial
launcher: python
script: counts.py
python: {python}
gpus: 1
params: {{quality: 0.5, steps: {steps}, seconds: 0.1}}
env: {{GPU_LOCKS: {locks}, GPU_PLACES: "{share}", GPU_PEAK: "{peak}"}}
metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
checkpoints: {{dir: "{{run_dir}}/checkpoints", pattern: "step_*.pt", resume: "--resume {{checkpoint}}"}}
recovery: {{policy: aggressive, max_attempts: 200, backoff: {{base: 0.1, max: 0.5}}}}
"""
STUDY = """
name: drill
profile: ./trial.yaml
space: {{quality: {{type: float, min: 0, max: 1}}}}
objective: {{metric: loss, over: best}}
sampler: tpe
pruner: {{kind: median, length: {steps}, rungs: {rungs}, startup: 6, warmup: 4}}
budget: {{trials: {trials}}}
trials_per_gpu: {share}
seed: {seed}
"""


class StudyChaos:
    """Studies, one after another, of ``trials`` trials of ``steps`` steps of a tenth of a second on simulated GPUs, of
    which ``share`` trials at most have one. ``killed`` counts by what was killed."""

    def __init__(self, machine: Machine, seed: int, *, trials: int = TRIALS, steps: int = 200, share: int = 1) -> None:
        self.machine = machine
        self.chance = random.Random(seed)
        self.trials = trials
        self.steps = steps
        self.share = share
        self.killed: Counter[str] = Counter()
        self.checked: Counter[str] = Counter()
        self.studies: list[str] = []
        self.victims = Victims(machine, self.chance, self.live)
        self._seen: dict[tuple[str, int], dict[str, Any]] = {}
        self._agent_at: float | None = None
        locks = machine.folder / "locks"
        locks.mkdir()
        # The seed makes the GPUs its own: leases count across all homes of a user.
        machine.workspace.scenario.write_text(
            f"gpus: {GPUS // share}\nmemory: 80GiB\nseed: {self.chance.randrange(1 << 31)}\n"
        )
        for name in ("counts.py", "title.py"):
            shutil.copy(SCRIPTS / name, machine.folder)
        profile = PROFILE.format(python=sys.executable, steps=steps, locks=locks, share=share, peak=PEAK_BYTES)
        (machine.folder / "trial.yaml").write_text(profile)

    # --- what is broken -----------------------------------------------------------------------------------------------

    def rage(self, kills: int) -> None:
        """Kill so many processes; where a study ends before that, the next one begins. Then let the last one end."""
        while self.killed.total() < kills:
            if self.is_over():
                self.begin()
            self.strike()
            self.wait(self.chance.uniform(0.1, 1.2))
        deadline = time.monotonic() + END_SECONDS
        while not self.is_over():
            assert time.monotonic() < deadline, self.rows("SELECT number, state, run_id, reason FROM trials")
            self.wait(0.5)

    def begin(self) -> None:
        seed = self.chance.randrange(1 << 31)
        text = STUDY.format(steps=self.steps, rungs=RUNGS, trials=self.trials, seed=seed, share=self.share)
        (self.machine.folder / "drill.yaml").write_text(text)
        self.studies.append(self.machine.json("study", "run", "drill.yaml")["id"])

    def strike(self) -> None:
        """Kill one of them, where there is one."""
        victims: dict[str, Callable[[], ProcessIdentity | None]] = {
            "agent": self.machine.agent,
            "study process": self.study_process,
            "trial": self.a_trial,
            "trial's shim": self.victims.a_shim,
        }
        kind = self.chance.choice(sorted(victims))
        victim = victims[kind]()
        if victim is None or not send_signal(victim, signal.SIGKILL):
            return
        self.killed[kind] += 1
        if kind == "agent":
            self._agent_at = time.monotonic() + self.chance.uniform(0.0, ALONE_SECONDS)

    def a_trial(self) -> ProcessIdentity | None:
        """A process of a trial's script."""
        processes = [identity for run_id in self.live() for identity in self.machine.marked(run_id)]
        return self.chance.choice(processes) if processes else None

    def study_process(self) -> ProcessIdentity | None:
        holder = identity.holder(self.machine.workspace.studies / self.studies[-1] / LOCK_FILE)
        return None if holder is None or not is_alive(holder.identity) else holder.identity

    def live(self) -> list[str]:
        """The runs of trials that are not over."""
        rows = self.rows("SELECT run_id FROM runs WHERE state NOT IN ('succeeded', 'failed', 'stopped')")
        return [str(row[0]) for row in rows]

    def is_over(self) -> bool:
        if not self.studies:
            return True
        rows = self.rows("SELECT state FROM studies WHERE study_id = ?", self.studies[-1])
        return bool(rows) and rows[0][0] not in ("running", "stopping")

    def wait(self, seconds: float) -> None:
        """Let time pass, look at all trials, and start an agent when its time has come."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.observe()
            if self._agent_at is not None and time.monotonic() >= self._agent_at:
                if self.machine.agent() is None:
                    self.machine.gputui("agent", "start", code=None)
                self._agent_at = None
            time.sleep(0.05)

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """None where the database is being opened."""
        try:
            return self.machine.rows(sql, *values)
        except sqlite3.OperationalError:
            return []

    # --- what must hold -----------------------------------------------------------------------------------------------

    def observe(self) -> None:
        """Raises AssertionError where a trial has another point, run or verdict than before, or is gone."""
        rows = self.rows("SELECT study_id, number, params, run_id, state, value, ended_at FROM trials")
        for study, number, params, run_id, state, value, ended_at in rows:
            earlier = self._seen.setdefault((study, number), {"params": params})
            assert earlier["params"] == params, f"{study} trial {number}: {params}, {earlier['params']} before"
            if run_id is not None:
                assert earlier.setdefault("run", run_id) == run_id, (
                    f"{study} trial {number}: {run_id}, {earlier['run']} before"
                )
            if "verdict" in earlier or ended_at is not None:
                now = (state, value, ended_at)
                before = earlier.setdefault("verdict", now)
                assert before == now, f"{study} trial {number}: {now}, {before} before"
        if rows:
            gone = self._seen.keys() - {(row[0], row[1]) for row in rows}
            assert not gone, f"trials that are gone: {gone}"

    def check(self) -> Counter[str]:
        """Raises AssertionError where a trial has no verdict or several, a GPU had two, or a point or line was lost.
        Returns how the trials ended."""
        self.observe()
        ends: Counter[str] = Counter()
        for study in self.studies:
            ends += self._check_study(study)
        need_none(
            self.machine,
            lambda: [run_id for run_id in self._runs() if self.machine.marked(run_id)],
            "processes",
            start_code=None,
        )
        need_none(self.machine, lambda: self.machine.rows("SELECT * FROM leases"), "leases", start_code=None)
        need_none(
            self.machine,
            lambda: self.machine.rows("SELECT * FROM commands WHERE state = 'pending'"),
            "commands",
            start_code=None,
        )
        assert self.machine.rows("PRAGMA integrity_check") == [("ok",)]
        assert self.machine.rows("PRAGMA foreign_key_check") == []
        return ends

    def _runs(self) -> list[str]:
        return [str(row[0]) for row in self.machine.rows("SELECT run_id FROM runs")]

    def _check_study(self, study: str) -> Counter[str]:
        ((state, reason),) = self.machine.rows("SELECT state, reason FROM studies WHERE study_id = ?", study)
        assert state == "finished", f"{study} is {state}: {reason}"
        trials = self.machine.rows(
            "SELECT number, state, params ->> '$.quality', value, run_id, reason FROM trials WHERE study_id = ? "
            "ORDER BY number",
            study,
        )
        assert [row[0] for row in trials] == list(range(self.trials)), trials
        assert len({row[2] for row in trials}) == self.trials, f"{study}: points that were drawn twice"
        runs = self.machine.rows("SELECT trial, run_id FROM runs WHERE study_id = ? ORDER BY trial", study)
        assert runs == [(row[0], row[4]) for row in trials], f"{study}: its runs are {runs}"
        rungs = self.machine.rows("SELECT number, rung, step, value FROM trial_rungs WHERE study_id = ?", study)
        for number, verdict, quality, value, run_id, why in trials:
            assert verdict in VERDICTS, f"{study} trial {number} is {verdict}: {why}"
            if verdict == "complete":
                assert abs(value - quality - 1 / self.steps) < 1e-9, f"{study} trial {number}: {value} at {quality}"
            for _, rung, step, reached in (rung for rung in rungs if rung[0] == number):
                assert abs(reached - quality - 1 / (step + 1)) < 1e-9, f"{study} trial {number}, rung {rung}: {reached}"
                self.checked["values at rungs"] += 1
            ((used,),) = self.machine.rows("SELECT params FROM runs WHERE run_id = ?", run_id)
            assert json.loads(used)["quality"] == quality, f"{run_id} ran with {used}, not {quality}"
            folder = self.machine.workspace.run_dir(run_id)
            check_lines(self.machine, run_id, folder, self.checked)
            check_courses(self.machine, run_id, folder, self.checked)
            begun = notes(folder / "starts.jsonl")
            crowded = [note["attempt"] for note in begun if note["place"] is None]
            assert not crowded, f"{run_id}: attempts {crowded} had a GPU that {self.share} other processes had"
            self.checked["starts with a GPU of their own"] += sum(note["place"] == 0 for note in begun)
            self.checked["starts beside another trial"] += sum(note["place"] > 0 for note in begun)
        return Counter(row[1] for row in trials)
