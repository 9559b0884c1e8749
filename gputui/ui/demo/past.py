"""A week of runs on a simulated machine, made by the agent's own code with a clock that was set back.

Attempts are prepared, their metrics ingested, and their ends classified and decided as by the agent; only their
processes never existed. So the screen, ``explain`` and the reports show what the real rules give.
"""

from __future__ import annotations

import heapq
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.health.alert_evaluation import AlertEvaluation
from gputui.agent.lifecycle.attempt_end import end_attempt
from gputui.agent.lifecycle.checkpoint_survey import scan, search_now, store_scan
from gputui.agent.lifecycle.execution import note_running, read_rest
from gputui.agent.lifecycle.live_attempt import LiveAttempt
from gputui.agent.lifecycle.postmortem import examine, postmortem_task
from gputui.agent.lifecycle.preparation import Grant, prepare_attempt
from gputui.agent.lifecycle.run_files import attempt_dir, open_metrics, resolved_run
from gputui.core.config import PRIVATE_DIR_MODE, Workspace
from gputui.machine.gpu_model import GpuEvent, GpuFacts, Occupant
from gputui.machine.host_sample import HostSampler
from gputui.machine.simulated import SimulatedSource
from gputui.machine.xid import xid_text
from gputui.profiles.profile_file import load
from gputui.profiles.resolve import GpuChoice, resolve
from gputui.recovery.effects import MachineContext
from gputui.runs import repository
from gputui.runs.code_version import read_code
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
from gputui.store.events import NewEvent, add_event
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run
from gputui.store.series import HostSample
from gputui.ui.demo.simulated_trainer import (
    CHECKPOINT_STEPS,
    LOG_STEPS,
    MODELS,
    VALIDATION_STEPS,
    Continuation,
    SimulatedTraining,
    log_line,
    save,
)
from gputui.ui.demo.stories import (
    CHANGED_AGO,
    DAY,
    HOUR,
    STORIES,
    STUDY,
    STUDY_AGO,
    Act,
    Story,
    change_script,
    write_profiles,
)

SAMPLED_SECONDS = 26 * HOUR
"""Length of the history of GPU samples."""

MAX_TRIAL_LINES = 100
"""About how many steps an attempt of a trial writes."""

MAX_VALIDATIONS = 100
"""About how many validations an attempt writes."""

RECENT_STEPS = 150
"""Newest steps of a live attempt that all have lines."""

READ_SECONDS = 60.0
"""How long the lines of an attempt may take to read."""


class Occupation(NamedTuple):
    """An attempt on its GPUs.

    Attributes:
        began_at: UTC unix seconds.
        ended_at: UTC unix seconds; infinity while the attempt lives.
        gpus: the index of each rank's GPU.
        peak_bytes: the memory that the attempt takes of each GPU.
    """

    began_at: float
    ended_at: float
    run_id: str
    gpus: tuple[int, ...]
    peak_bytes: int


Play = Iterator[float]
"""Writes a part of the past, piece by piece: each value is the time (UTC) of the next piece."""


class DemoPast:
    """Makes the history of a home with a simulated machine.

    Attributes:
        now: the present, where the past ends, UTC unix seconds.
        at: the time that the agent's code sees while it writes, UTC unix seconds.
        gpus: the GPUs of the simulated machine.
        busy: what attempts did on the GPUs.
    """

    def __init__(
        self, workspace: Workspace, source: SimulatedSource, now: float, host: HostSample | None = None
    ) -> None:
        self.workspace = workspace
        self._host = host or HostSampler(workspace.state).sample(now, now)
        self.source = source
        self.now = now
        self.at = now
        self.connection = open_writer(workspace.database)
        self.context = AgentContext.of(
            self.connection, workspace, wake=lambda: None, now=lambda: self.at, monotonic=time.monotonic
        )
        self.gpus: tuple[GpuFacts, ...] = ()
        self.busy: list[Occupation] = []

    def make(self, study: Callable[[DemoPast, Path], Play], stories: Sequence[Story] = STORIES) -> None:
        """Write the history in the order of its moments.

        Args:
            study: plays the study of a file.
            stories: the other runs.

        Raises:
            sqlite3.Error, OSError: it cannot be written.
        """
        self.at = self.now - 7 * DAY
        write_profiles(self.workspace, self.at)
        inventory = self.source.inventory(self.at)
        self.gpus = inventory.gpus
        self.context.recorder.take([inventory])
        self.context.recorder.flush()
        plays = [
            (self.now - STUDY_AGO, 0, study(self, self.workspace.study_files / f"{STUDY}.yaml")),
            (self.now - CHANGED_AGO, 1, change_script(self.workspace.profiles, self.now - CHANGED_AGO)),
            (self.now - SAMPLED_SECONDS, 2, self._sample()),
            *((self.now - story.began_ago, number, self._play(story)) for number, story in enumerate(stories, 3)),
        ]
        # Events are shown in the order in which they were written.
        heapq.heapify(plays)
        while plays:
            self.at, number, play = heapq.heappop(plays)
            following = next(play, None)
            if following is not None:
                heapq.heappush(plays, (following, number, play))

    def close(self) -> None:
        self.context.ingest.close()
        self.connection.close()

    # --- runs

    def _play(self, story: Story) -> Play:
        profile = load(self.workspace.profiles / f"{story.profile}.yaml")
        overrides = {}
        if story.lr is not None:
            overrides["lr"] = story.lr
        spec = resolve(profile, GpuChoice(inventory=self.gpus), overrides=overrides)
        spec = replace(spec, shell=None, code=read_code(Path(spec.workdir)))
        run_id = self.begin_run(spec, story.actor)
        gpus = story.gpus
        for act in story.acts:
            yield from self._act(run_id, act, gpus, story.actor)
            quarantined = {uuid for (uuid,) in self.connection.execute("SELECT gpu_uuid FROM gpu_quarantine")}
            gpus = tuple(index for index in gpus if self.gpus[index].uuid not in quarantined)

    def train_trial(
        self, run_id: str, gpus: tuple[int, ...], step_seconds: float, last_step: int, pruned: str | None, actor: str
    ) -> None:
        """Write the only attempt of a trial's run, to its end or to where it is pruned."""
        act = Act(
            last_step, is_stopped=pruned is not None, pruned=pruned, max_lines=MAX_TRIAL_LINES, checkpoints=0,
            step_seconds=step_seconds,
        )  # fmt: skip
        for _ in self._act(run_id, act, gpus, actor):
            pass

    def begin_run(self, spec: RunSpec, actor: str, name: str | None = None) -> str:
        """Queue a run now; returns its id."""
        connection = self.connection
        workspace = self.workspace
        name = name or spec.name
        run_id, sequence = repository.next_run_id(connection, name, set())
        folder = workspace.run_dir(run_id)
        folder.mkdir(mode=PRIVATE_DIR_MODE)
        write_spec(folder / SPEC_FILE, spec)
        with transaction(connection):
            repository.insert_run(
                connection,
                repository.NewRun(
                    run_id=run_id, sequence=sequence, name=name, spec=redact_spec(spec), params=spec.params
                ),
                now=self.at,
                actor=actor,
            )
            open_metrics(self.context.ingest, run_id, spec, folder)
            add_event(connection, NewEvent("launched", f"launched by {actor}", run_id=run_id), now=self.at)
        return run_id

    def _act(self, run_id: str, act: Act, gpus: tuple[int, ...], actor: str) -> Play:
        """Write the start of an attempt and all that it does, then its end."""
        run = self._queued(run_id, act, actor)
        uuids = tuple(self.gpus[index].uuid for index in gpus)
        executor = self.context.executors.of(None)
        attempt = prepare_attempt(self.context, Start(run, uuids), Grant(executor, gpus))
        began_at = self.at
        with transaction(self.connection):
            repository.set_attempt_started(self.connection, run_id, attempt.number, began_at)
        printed = self._train(run_id, attempt, act, len(gpus))
        log = attempt_dir(self.workspace, run_id, attempt.number) / FIRST_NODE / OUTPUT
        log.write_text("\n".join([f"training on {len(gpus)} GPUs", *printed, act.log]))
        peak = MODELS[run.profile].peak_bytes(int(str(attempt.params["batch_size"])))
        if act.is_live:
            self._survey_live(run_id, attempt)
            self.busy.append(Occupation(began_at, math.inf, run_id, gpus, peak))
            return
        self.busy.append(Occupation(began_at, self.at, run_id, gpus, peak))
        yield self.at
        if act.is_stopped:
            self._request_stop(run_id, attempt, act.pruned or "stop", actor)
        if act.xid is not None:
            event = GpuEvent(self.at - 1, uuids[-1], "xid", act.xid, xid_text(act.xid))
            self.context.recorder.take([event])
            self.context.recorder.flush()
        self._end(run_id, attempt, act, began_at, uuids)

    def _queued(self, run_id: str, act: Act, actor: str) -> Run:
        """The run, queued for another attempt where one has ended."""
        run = self._run(run_id)
        if run.state is RunState.RECOVERING:
            self.at += 12.0
            with transaction(self.connection):
                repository.move(self.connection, run, RunState.QUEUED, cause="the wait is over", now=self.at)
            return self._run(run_id)
        if run.state is RunState.STOPPED:
            return self._resume(run, act, actor)
        return run

    def _resume(self, run: Run, act: Act, actor: str) -> Run:
        """Queue a stopped run again from its last checkpoint."""
        self.at += 3.0
        newest = max((self.workspace.run_dir(run.run_id) / "checkpoints").iterdir())
        with transaction(self.connection):
            repository.replace_next_attempt(
                self.connection,
                run.run_id,
                params={**run.params, "batch_size": act.batch_size},
                resume_from=str(newest),
            )
            repository.move(self.connection, run, RunState.QUEUED, cause="resume", actor=actor, now=self.at)
            self.context.note("requeued", f"resumed by {actor} from {newest.name}", run.run_id, key="resume")
        return self._run(run.run_id)

    def _train(self, run_id: str, attempt: Attempt, act: Act, ranks: int) -> list[str]:
        """Write metrics and checkpoints, and move the clock; returns what was printed."""
        folder = self.workspace.run_dir(run_id)
        params = {name: float(str(value)) for name, value in attempt.params.items()}
        model = MODELS[self._run(run_id).profile]
        training = SimulatedTraining(
            model,
            int(params["steps"]),
            params["lr"],
            weight_decay=params["weight_decay"],
            batch_size=int(params["batch_size"]),
            accumulated=int(params["grad_accum"]),
        )
        step_seconds = act.step_seconds or model.step_seconds(training.samples)
        first_step = attempt.resumed_step or 0
        first_at = self.at + act.start_seconds
        if act.is_live:
            act = replace(act, last_step=first_step + int((self.now - first_at) / step_seconds))

        def time_of(step: int) -> float:
            return first_at + (step - first_step) * step_seconds

        saved = _saved_steps(act, first_step)
        steps = _written_steps(act, first_step, saved)
        if steps:
            self.at = first_at
            with transaction(self.connection):
                note_running(self.context, run_id, attempt.number, "first step read")
        with (folder / "metrics.jsonl").open("a") as file:
            for step in steps:
                for line in training.lines(step, time_of(step), ranks, step_seconds):
                    file.write(json.dumps(line) + "\n")
        for step in saved:
            at = time_of(step) + 0.1
            os.utime(save(folder / "checkpoints", step, model.checkpoint_bytes), (at, at))
        self.at = time_of(act.last_step) + 1.0
        if act.is_live:
            self.at = self.now
            fails_at = None
            if act.fails_after is not None:
                fails_at = act.last_step + act.fails_after
            Continuation(act.last_step, fails_at).write(folder)
        logged = [step for step in steps if step % LOG_STEPS == 0]
        return [log_line(step, training.steps, training.training_loss(step)) for step in logged]

    def _survey_live(self, run_id: str, attempt: Attempt) -> None:
        """Store the checkpoints of an attempt, as the agent does while it lives."""
        read_rest(self.context, run_id, READ_SECONDS)
        search = search_now(self.context, self._run(run_id))
        if search is not None:
            with transaction(self.connection):
                store_scan(self.connection, attempt.number, scan(search, self.at))

    def _request_stop(self, run_id: str, attempt: Attempt, cause: str, actor: str) -> None:
        with transaction(self.connection):
            repository.request_stop(self.connection, run_id, attempt.number, "stop")
            run = self._run(run_id)
            repository.move(self.connection, run, RunState.STOPPING, cause=cause, actor=actor, now=self.at)

    def _end(self, run_id: str, attempt: Attempt, act: Act, began_at: float, uuids: tuple[str, ...]) -> None:
        context = self.context
        read_rest(context, attempt.run_id, READ_SECONDS)
        fresh = get_attempt(self.connection, run_id, attempt.number)
        assert fresh is not None
        record = {
            "code": act.code, "signal": None, "started_at": began_at, "ended_at": self.at,
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

    def _sample(self) -> Play:
        """Record GPUs and host: a sample per minute, at the end one every five seconds, with the alerts that follow."""
        begin = self.now - SAMPLED_SECONDS
        recent = self.now - 900.0
        times = [begin + 60.0 * number for number in range(int((recent - begin) // 60.0))]
        times += [recent + 5.0 * number for number in range(1, 181)]
        recorder = self.context.recorder
        recorder.reported.clear()
        # Durations of alerts are those of the history.
        alerts = AlertEvaluation(replace(self.context, monotonic=lambda: self.at), lambda: ())
        for number, at in enumerate(times):
            yield at
            self.source.occupy(self._occupants(at))
            recorder.take([self.source.fast(at), replace(self._host, at=at)])
            if number % 100 == 99:
                recorder.flush()
            if at >= recent:
                alerts.poll()
        recorder.flush()

    def _occupants(self, at: float) -> list[Occupant]:
        """What uses the GPUs at a moment, UTC unix seconds."""
        pid = os.getpid()
        return [
            Occupant(
                self.gpus[index].uuid,
                pid,
                occupation.run_id,
                rank=rank,
                memory_bytes=occupation.peak_bytes,
                since=occupation.began_at,
            )
            for occupation in self.busy
            if occupation.began_at <= at < occupation.ended_at
            for rank, index in enumerate(occupation.gpus)
        ]


def _saved_steps(act: Act, first_step: int) -> list[int]:
    """The steps of the checkpoints that an attempt leaves: its last ones, and its end. Each is read once, which takes
    10 ms."""
    newest = act.last_step // CHECKPOINT_STEPS * CHECKPOINT_STEPS
    last = range(newest - (act.checkpoints - 1) * CHECKPOINT_STEPS, newest + 1, CHECKPOINT_STEPS)
    saved = [step for step in last if step > first_step]
    is_complete = act.code == 0 and act.pruned is None and not act.is_live
    if is_complete and act.last_step not in saved:
        saved.append(act.last_step)
    return saved


def _written_steps(act: Act, first_step: int, saved: Sequence[int]) -> list[int]:
    """The steps of an attempt that have lines: some of all, some validated ones, each saved one, and the newest ones
    while it lives."""
    end = act.last_step + 1
    recent = range(0)
    if act.is_live:
        recent = range(max(first_step + 1, act.last_step - RECENT_STEPS), end)
    if not act.last_step:
        return list(recent)
    count = act.last_step - first_step
    some = range(first_step + 1, end, max(1, count // act.max_lines))
    first_validated = first_step - first_step % VALIDATION_STEPS + VALIDATION_STEPS
    every = max(1, count // (VALIDATION_STEPS * MAX_VALIDATIONS))
    validated = range(first_validated, end, VALIDATION_STEPS * every)
    # A checkpoint's step is that of the line before it.
    return sorted({*some, *validated, *saved, *recent, act.last_step})
