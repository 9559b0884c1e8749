"""A week of runs on a simulated machine, made by the agent's own code with a clock that was set back.

Attempts are prepared, their metrics ingested, and their ends classified and decided as by the agent; only their
processes never existed. So the screen, ``explain`` and the reports show what the real rules give.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.attempt_end import end_attempt
from gputui.agent.lifecycle.execution import examine, postmortem_task, read_rest
from gputui.agent.lifecycle.live_attempt import LiveAttempt
from gputui.agent.lifecycle.preparation import Grant, prepare_attempt
from gputui.agent.lifecycle.run_files import attempt_dir, open_metrics, resolved_run
from gputui.core.config import PRIVATE_DIR_MODE, Workspace
from gputui.machine.gpu_model import GpuEvent, GpuFacts, Occupant
from gputui.machine.host_sample import HostSampler
from gputui.machine.simulated import SimulatedSource
from gputui.machine.xid import xid_text
from gputui.profiles.profile_file import load
from gputui.profiles.resolve import resolve
from gputui.recovery.effects import MachineContext
from gputui.runs import repository
from gputui.runs.executors.process import ExecutorProcess
from gputui.runs.launchers.base import OUTPUT
from gputui.runs.logs import FIRST_NODE
from gputui.runs.redaction import redact_spec
from gputui.runs.repository import transaction
from gputui.runs.scheduler import Start
from gputui.runs.spec import RunSpec
from gputui.runs.submission import SPEC_FILE, write_spec
from gputui.store.attempts import Attempt, get_attempt
from gputui.store.database import open_writer
from gputui.store.events import add_event
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run
from gputui.store.series import HostSample
from gputui.ui.demo.simulated_trainer import (
    CHECKPOINT_STEPS,
    LOG_STEPS,
    MODELS,
    VALIDATION_STEPS,
    lines,
    log_line,
    loss_at,
    save,
    tuned_end,
)
from gputui.ui.demo.study import STUDY, play_study

HOUR = 3600.0
DAY = 24 * HOUR

SAMPLED_SECONDS = 26 * HOUR
"""Length of the history of GPU samples."""

STUDY_AGO = 3.2 * DAY
"""How long ago the study began."""

MAX_LINES, MAX_TRIAL_LINES = 1500, 200
"""About how many steps an attempt, and an attempt of a trial, writes; a line for each step would only take time."""

MAX_VALIDATIONS = 200
"""About how many validations an attempt writes."""

RECENT_STEPS = 300
"""Newest steps of a live attempt that all have lines."""

OOM = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/srv/train/train.py", line 88, in <module>
[rank1]:     loss.backward()
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has 1.31 GiB free.
"""
KEY_ERROR = """\
Traceback (most recent call last):
  File "/srv/train/train.py", line 41, in <module>
    batch = collate(next(iter(loader)))
  File "/srv/train/data.py", line 17, in collate
    return {"labels": torch.stack([row["labels"] for row in rows])}
KeyError: 'labels'
"""
BUS_ERROR = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/srv/train/train.py", line 88, in <module>
[rank3]:     loss.backward()
[rank3]: torch.AcceleratorError: CUDA error: unspecified launch failure
"""


class Act(Struct, frozen=True):
    """One attempt: its last step, its output's end, its last GPU's XID, why it was pruned."""

    last_step: int
    log: str = ""
    code: int = 0
    xid: int | None = None
    is_stopped: bool = False
    pruned: str | None = None
    max_lines: int = MAX_LINES
    is_live: bool = False


class Story(Struct, frozen=True):
    """One run: its start in seconds ago, GPUs, attempts, and learning rate if not the profile's."""

    profile: str
    began_ago: float
    gpus: tuple[int, ...]
    acts: tuple[Act, ...]
    actor: str = "ada"
    lr: float | None = None


STORIES = (
    Story("resnet50", 6.2 * DAY, (0, 1, 2, 3), (Act(90_000),)),
    Story("vit-b16", 4.1 * DAY, (4, 5), (Act(34_150, OOM, 1), Act(90_000))),
    Story("gpt2-124m", 2.3 * DAY, (4, 5, 6, 7), (Act(46_950, BUS_ERROR, 1, xid=79), Act(120_000))),
    Story("bert-mlm", 1.2 * DAY, (0, 1), (Act(0, KEY_ERROR, 1),), "bob"),
    Story("vit-b16", 22 * HOUR, (4, 6), (Act(90_000),), lr=0.0015),
    Story("gpt2-124m", 5.5 * HOUR, (0, 1, 2, 3), (Act(48_960, is_stopped=True),)),
)


class Clock:
    """The clock of the agent's code, in UTC unix seconds."""

    def __init__(self, at: float) -> None:
        self.at = at

    def now(self) -> float:
        return self.at


class DemoPast:
    """Makes the history of a home with a simulated machine; ``host`` is this one if None."""

    def __init__(
        self, workspace: Workspace, source: SimulatedSource, now: float, host: HostSample | None = None
    ) -> None:
        self.workspace = workspace
        self._host = host or HostSampler(workspace.state).sample(now, now)
        self.source = source
        self.until = now
        self.clock = Clock(now)
        self.connection = open_writer(workspace.database)
        self.context = AgentContext.of(
            self.connection, workspace, wake=lambda: None, now=self.clock.now, monotonic=time.monotonic
        )
        self.gpus: tuple[GpuFacts, ...] = ()
        self.busy: list[tuple[float, float, str, tuple[int, ...]]] = []

    def make(self, stories: Sequence[Story] = STORIES, each_recent: Callable[[], object] = lambda: None) -> None:
        """Write it; ``each_recent`` follows each late sample. Raises sqlite3.Error, OSError."""
        self.clock.at = self.until - 7 * DAY
        inventory = self.source.inventory(self.clock.at)
        self.gpus = inventory.gpus
        self.context.recorder.take([inventory])
        self.context.recorder.flush()
        file = self.workspace.study_files / f"{STUDY}.yaml"
        plays: list[tuple[float, Callable[[], None]]] = [
            (STUDY_AGO, partial(play_study, self, file, self.until - STUDY_AGO)),
            *((story.began_ago, partial(self._play, story)) for story in stories),
        ]
        for _, play in sorted(plays, key=lambda each: -each[0]):
            play()
        self.context.recorder.reported.clear()
        self._sample(each_recent)

    def close(self) -> None:
        self.context.ingest.close()
        self.connection.close()

    # --- runs

    def _play(self, story: Story) -> None:
        self.clock.at = self.until - story.began_ago
        profile = load(self.workspace.profiles / f"{story.profile}.yaml")
        changed = {} if story.lr is None else {"lr": story.lr}
        spec = resolve(profile, overrides=changed, inventory=self.gpus)
        run_id = self.begin_run(replace(spec, shell=None), story.actor)
        gpus = story.gpus
        for act in story.acts:
            gpus = self._act(run_id, act, gpus, MODELS[story.profile][0], story.actor)

    def train_trial(
        self, run_id: str, gpus: tuple[int, ...], step_seconds: float, last_step: int, pruned: str | None, actor: str
    ) -> None:
        """Write the only attempt of a trial's run, to its end or to where it is pruned."""
        act = Act(last_step, is_stopped=pruned is not None, pruned=pruned, max_lines=MAX_TRIAL_LINES)
        self._act(run_id, act, gpus, step_seconds, actor)

    def begin_run(self, spec: RunSpec, actor: str, name: str | None = None) -> str:
        """Queue a run now; returns its id."""
        clock, connection, workspace = self.clock, self.connection, self.workspace
        name = name or spec.name
        run_id, sequence = repository.next_run_id(connection, name, set())
        folder = workspace.run_dir(run_id)
        folder.mkdir(mode=PRIVATE_DIR_MODE)
        write_spec(folder / SPEC_FILE, spec)
        with transaction(connection):
            repository.insert_run(
                connection, run_id=run_id, sequence=sequence, name=name, spec=redact_spec(spec),
                params=spec.params, now=clock.at, actor=actor,
            )  # fmt: skip
            open_metrics(self.context.ingest, run_id, spec, folder)
            add_event(connection, "launched", f"launched by {actor}", now=clock.at, run_id=run_id)
        return run_id

    def _act(self, run_id: str, act: Act, gpus: tuple[int, ...], step_seconds: float, actor: str) -> tuple[int, ...]:
        """Write one attempt from its start to its end; returns the GPUs of the next one."""
        clock, connection, workspace = self.clock, self.connection, self.workspace
        run = self._run(run_id)
        if run.state is RunState.RECOVERING:
            clock.at += 12.0
            with transaction(connection):
                repository.move(connection, run, RunState.QUEUED, cause="the wait is over", now=clock.at)
            run = self._run(run_id)
        uuids = [self.gpus[index].uuid for index in gpus]
        executor = self.context.executors.of(None)
        attempt = prepare_attempt(self.context, Start(run, tuple(uuids)), Grant(executor, gpus))
        began_at = clock.at
        with transaction(connection):
            repository.set_attempt_started(connection, run_id, attempt.number, clock.at)
        printed = self._train(run_id, attempt, act, len(gpus), step_seconds)
        log = attempt_dir(workspace, run_id, attempt.number) / FIRST_NODE / OUTPUT
        log.write_text("\n".join([f"training on {len(gpus)} GPUs", *printed, act.log]))
        if act.is_stopped:
            with transaction(connection):
                repository.request_stop(connection, run_id, attempt.number, "stop")
                run, cause = self._run(run_id), act.pruned or "stop"
                repository.move(connection, run, RunState.STOPPING, cause=cause, actor=actor, now=clock.at)
        if act.xid is not None:
            event = GpuEvent(clock.at - 1, uuids[-1], "xid", act.xid, xid_text(act.xid))
            self.context.recorder.take([event])
            self.context.recorder.flush()
        if act.is_live:
            read_rest(self.context, run_id, 60.0)
            self.busy.append((began_at, math.inf, run_id, gpus))
            return gpus
        self._end(run_id, attempt, act, began_at, tuple(uuids))
        self.busy.append((began_at, clock.at, run_id, gpus))
        quarantined = {uuid for (uuid,) in connection.execute("SELECT gpu_uuid FROM gpu_quarantine")}
        return tuple(index for index in gpus if self.gpus[index].uuid not in quarantined)

    def _train(self, run_id: str, attempt: Attempt, act: Act, ranks: int, step_seconds: float) -> list[str]:
        """Write metrics and checkpoints, and move the clock; returns what was printed."""
        clock, folder = self.clock, self.workspace.run_dir(run_id)
        first_step, first_at = attempt.resumed_step or 0, clock.at + 18.0
        if act.is_live:
            act = replace(act, last_step=first_step + int((self.until - first_at) / step_seconds))
        saved = _saved_steps(act, first_step)
        steps = _written_steps(act, first_step, saved)
        if act.is_live:
            steps = sorted({*steps, *range(max(first_step + 1, act.last_step - RECENT_STEPS), act.last_step + 1)})
        if steps:
            run = self._run(run_id)
            with transaction(self.connection):
                repository.move(self.connection, run, RunState.RUNNING, cause="first step read", now=first_at)
        written: list[dict[str, object]] = []
        params = {name: float(str(value)) for name, value in attempt.params.items()}
        first, last = MODELS[self._run(run_id).profile][1]
        loss = first, tuned_end(last, params["lr"], params["weight_decay"])
        printed: list[str] = []
        samples = int(params["batch_size"] * params["grad_accum"])
        for step in steps:
            at = first_at + (step - first_step) * step_seconds
            if step % LOG_STEPS == 0:
                now = loss_at(step, int(params["steps"]), *loss, int(first * 1000))
                printed.append(log_line(step, int(params["steps"]), now))
            written += lines(
                step, at, total=int(params["steps"]), ranks=ranks, batch_size=samples,
                step_seconds=step_seconds, loss=loss, lr=params["lr"],
            )  # fmt: skip
        with (folder / "metrics.jsonl").open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in written)
        for step in saved:
            at = first_at + (step - first_step) * step_seconds + 0.1
            os.utime(save(folder / "checkpoints", step), (at, at))
        clock.at = self.until if act.is_live else first_at + (act.last_step - first_step) * step_seconds + 1.0
        return printed

    def _end(self, run_id: str, attempt: Attempt, act: Act, began_at: float, uuids: tuple[str, ...]) -> None:
        context = self.context
        read_rest(context, attempt.run_id, 60.0)
        fresh = get_attempt(self.connection, run_id, attempt.number)
        assert fresh is not None
        record = {
            "code": act.code, "signal": None, "started_at": began_at, "ended_at": self.clock.at,
            "stop_requested": act.is_stopped,
        }  # fmt: skip
        resolved = resolved_run(context.workspace, self._run(run_id))
        folder = attempt_dir(context.workspace, run_id, attempt.number)
        live = LiveAttempt(fresh, ExecutorProcess(None, folder), resolved)
        task = postmortem_task(context, live, record, ())
        end_attempt(context, task, examine(task), MachineContext(gpus=uuids))
        if self._run(run_id).state.is_over:
            with transaction(self.connection):
                repository.release_leases(self.connection, run_id)

    def _run(self, run_id: str) -> Run:
        run = get_run(self.connection, run_id)
        assert run is not None
        return run

    # --- hardware

    def _sample(self, each_recent: Callable[[], object]) -> None:
        """Record GPUs and host: a sample per minute, at the end one every two seconds."""
        begin, recent = self.until - SAMPLED_SECONDS, self.until - 900.0
        times = [begin + 60.0 * number for number in range(int((recent - begin) // 60.0))]
        times += [recent + 2.0 * number for number in range(450)]
        recorder = self.context.recorder
        pid = os.getpid()
        for number, at in enumerate(times):
            self.clock.at = at
            occupants = [
                Occupant(self.gpus[index].uuid, pid, run_id, rank)
                for began_at, ended_at, run_id, gpus in self.busy
                if began_at <= at < ended_at
                for rank, index in enumerate(gpus)
            ]
            self.source.occupy(occupants)
            recorder.take([self.source.fast(at), replace(self._host, at=at)])
            if number % 100 == 99:
                recorder.flush()
            if at >= recent:
                each_recent()
        recorder.flush()


def _saved_steps(act: Act, first_step: int) -> list[int]:
    """The steps of the checkpoints that an attempt leaves: its last three, and its end."""
    newest = act.last_step // CHECKPOINT_STEPS * CHECKPOINT_STEPS
    kept = range(newest - 2 * CHECKPOINT_STEPS, newest + 1, CHECKPOINT_STEPS)
    saved = [step for step in kept if step > first_step]
    if act.code == 0 and act.pruned is None and not act.is_live and act.last_step not in saved:
        saved.append(act.last_step)
    return saved


def _written_steps(act: Act, first_step: int, saved: Sequence[int]) -> list[int]:
    """The steps of an attempt that have lines: some of all, some validated ones, each saved one."""
    if not act.last_step:
        return []
    every = max(1, (act.last_step - first_step) // act.max_lines)
    interval = VALIDATION_STEPS * max(1, (act.last_step - first_step) // (VALIDATION_STEPS * MAX_VALIDATIONS))
    validated = range(first_step - first_step % VALIDATION_STEPS + VALIDATION_STEPS, act.last_step + 1, interval)
    # A checkpoint's step is that of the line before it.
    return sorted({*range(first_step + 1, act.last_step + 1, every), *validated, *saved, act.last_step})
