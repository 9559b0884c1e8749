"""Admission of queued runs: start those that may on free GPUs, and store what the others wait for.

The plan of an attempt is on disk and in the store before its executor starts, so that the agent can
be killed at any time.
"""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import asdict, replace

from gputui.agent.context import AgentContext
from gputui.agent.error_barrier import Parts
from gputui.agent.lifecycle import checkpoint_survey
from gputui.agent.lifecycle.ending import give_up
from gputui.agent.lifecycle.gpus import GpuHolds, foreign_bytes, gpu_availability
from gputui.agent.lifecycle.run_files import attempt_numbers, policy_of, rank_output
from gputui.agent.lifecycle.scheduler import GpuAvailability, Start, Wait, gpus_wanted, schedule
from gputui.agent.lifecycle.waiting import may_start
from gputui.core.config import PRIVATE_DIR_MODE
from gputui.core.redaction import Redactor
from gputui.core.units import bytes_text
from gputui.recovery.actions import go_on_with_fewer
from gputui.recovery.effects import SkippedAction, apply_changes
from gputui.recovery.kinds import SHARED_OOM
from gputui.runs import repository
from gputui.runs.agent_process import agent_for_executor
from gputui.runs.command import Launch, build_launch, checkpoint_directory, in_run, without_gpus
from gputui.runs.executors.base import Executor, ExecutorGoneError
from gputui.runs.gpu_locks import GpuHeldError, GpuLocks, HeldLocks
from gputui.runs.launchers.base import OUTPUT, Placement
from gputui.runs.logs import FIRST_NODE
from gputui.runs.redaction import redact_launch, restore, secrets_of
from gputui.runs.spec import RunSpec, spec_of
from gputui.runs.submission import SPEC_FILE, read_spec, write_private
from gputui.store import queue
from gputui.store.attempts import Attempt, get_attempt
from gputui.store.gpu_use import study_peaks
from gputui.store.run_history import met_incident
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run, queued_runs
from gputui.studies.sharing import trials_on_gpu

# A GPU that is reset, or whose driver is reloaded, is back within minutes.
MISSING_SECONDS = 300.0
LEAST_CPU_RANKS = 16


def waits_for_predecessor(connection: sqlite3.Connection, run: Run) -> str | None:
    """Why a run that follows others does not start yet; None once all of them succeeded, or if it
    has started before. Raises sqlite3.Error."""
    for run_id in spec_of(run).after if not run.attempt else ():
        predecessor = get_run(connection, run_id)
        state = "was removed" if predecessor is None else predecessor.state
        if state is not RunState.SUCCEEDED:
            is_over = predecessor is None or predecessor.state.is_over
            ends = f", which {state}; gputui stop {run.run_id} ends that"
            return f"waits for {run_id}{ends if is_over else ' to succeed'}"
    return None


@dataclass(slots=True)
class Admission:
    """Takes runs from the queue and starts their attempts."""

    context: AgentContext
    parts: Parts
    holds: GpuHolds
    locks: GpuLocks
    # Starts an attempt, given its executor and the descriptors of its GPU locks.
    spawn: Callable[[Attempt, Executor, Sequence[int]], None]
    # Since when GPUs of a run are missing, by run id (monotonic).
    short_since: dict[str, float] = field(default_factory=dict)

    def availability(self) -> list[GpuAvailability] | None:
        """The availability of each GPU, or None before the first inventory."""
        return gpu_availability(self.context, self.holds.uuids(), self.locks.is_held)

    def turn(self) -> bool:
        """Start as many runs as a turn has time for, and store what the others wait for. True if
        none is left that may start. Raises sqlite3.Error."""
        context, connection = self.context, self.context.connection
        waiting = queued_runs(connection)
        if not waiting:
            return True
        outcomes = schedule(
            waiting,
            self.availability(),
            paused=queue.pause(connection) is not None,
            # More on small machines, because such runs often wait for a disk or a network.
            cpu_limit=max(len(os.sched_getaffinity(0)), LEAST_CPU_RANKS),
            cpu_running=repository.cpu_ranks(connection),
            places_gpus=lambda run: context.executors.of(spec_of(run).target).places_gpus,
            predecessor=lambda run: waits_for_predecessor(connection, run),
            share_of=partial(self._share_of, {}),
        )
        missed_long = self._missed_long(outcomes)
        is_done, is_one_started = True, False
        reasons: list[tuple[str, str]] = []
        for outcome in outcomes:
            run_id = outcome.run.run_id
            if isinstance(outcome, Start):
                if is_one_started and context.turn.is_spent():
                    is_done = False
                elif not self.parts.is_resting(run_id):
                    is_one_started = True
                    with self.parts.around(run_id):
                        if self._answers(outcome.run) and may_start(context, outcome.run):
                            self._start(outcome)
            elif run_id in missed_long:
                with self.parts.around(run_id):
                    self._continue_with_fewer(outcome)
            elif outcome.run.waiting_for != outcome.reason:
                reasons.append((outcome.reason, run_id))
        if reasons:
            with repository.transaction(connection):
                connection.executemany("UPDATE runs SET waiting_for = ? WHERE run_id = ?", reasons)
        return is_done

    def _may_share(self, run: Run) -> bool:
        """Whether the run is a trial that shares its GPU, until it runs out of memory there."""
        spec = spec_of(run)
        if spec.trials_per_gpu < 2 or spec.study_id is None or gpus_wanted(run) != 1:
            return False
        return not met_incident(self.context.connection, run.run_id, SHARED_OOM)

    def _share_of(self, peaks: dict[str, dict[str, int]], run: Run, gpu: GpuAvailability) -> int:
        """Number of the study's trials that may use a GPU at a time. ``peaks`` collects, by study,
        their memory peaks in bytes by GPU model. Raises sqlite3.Error."""
        facts, spec = self.context.recorder.facts.get(gpu.uuid), spec_of(run)
        if facts is None or spec.study_id is None or not self._may_share(run):
            return 1
        if spec.study_id not in peaks:
            peaks[spec.study_id] = study_peaks(self.context.connection, spec.study_id)
        foreign, peak = foreign_bytes(self.context.recorder, gpu.uuid), peaks[spec.study_id].get(facts.name)
        return trials_on_gpu(spec.trials_per_gpu, gpu.total_bytes, foreign, peak)

    def _missed_long(self, outcomes: Sequence[Start | Wait]) -> set[str]:
        """The runs that have lacked GPUs for MISSING_SECONDS that only a person or the driver can
        bring back. An unresponsive driver does not count."""
        now, inventory, before = self.context.monotonic(), self.context.recorder.inventory, self.short_since
        waits = [outcome for outcome in outcomes if isinstance(outcome, Wait)]
        short = [wait.run.run_id for wait in waits if wait.in_service is not None]
        self.short_since = {run_id: before.get(run_id, now) for run_id in short}
        if inventory is None or inventory.problem is not None:
            return set()
        return {run_id for run_id, since in self.short_since.items() if now - since >= MISSING_SECONDS}

    def _continue_with_fewer(self, wait: Wait) -> None:
        """Give back the leases of a run for which enough GPUs are in service: it waits for another
        run's, which may wait for its. Else continue with fewer by the rule of exclude_gpu if the
        policy has that action, or fail the run."""
        run, remaining = wait.run, wait.in_service or 0
        gpus = [gpu for gpu in self.availability() or () if run.run_id in gpu.holders]
        missing = [gpu for gpu in gpus if gpu.out_of_service]
        reason = "; ".join(f"{gpu.name} {gpu.blocked_by}" for gpu in missing)
        reason += f", for {MISSING_SECONDS / 60:.0f} min"
        if remaining >= gpus_wanted(run):
            repository.release_leases(self.context.connection, run.run_id)
            text = f"{reason}: its other GPUs are given back until enough are free"
            self.context.note("gpus_replaced", text, run.run_id, severity="warning")
            return
        actions = [action.name for rung in policy_of(run).ladder("gpu_lost") for action in rung]
        if "exclude_gpu" not in actions:
            give_up(self.context, run, f"{reason}; its policy does not exclude GPUs")
            return
        names, wanted = ", ".join(gpu.name for gpu in missing), gpus_wanted(run)
        result = go_on_with_fewer(spec_of(run), run.params, wanted, remaining, names)
        if isinstance(result, SkippedAction):
            give_up(self.context, run, f"{reason}; {result.why}")
            return
        with repository.transaction(self.context.connection) as connection:
            repository.set_next_attempt(
                connection,
                run.run_id,
                params=apply_changes(run.params, (result,)),
                resume_from=run.resume_from,
                not_before=run.not_before,
            )
            repository.set_gpu_count(connection, run.run_id, remaining)
            text = f"{reason}: {result.note}"
            self.context.note("gpus_reduced", text, run.run_id, severity="warning")

    def _answers(self, run: Run) -> bool:
        """Whether the ends of the run's metrics files are known, behind which the new attempt's
        lines begin. They are read in the background: the file system may not answer."""
        awaited = self.context.ingest.ends.awaited(run.run_id)
        text = f"waits for {awaited} to answer"
        if awaited is not None and run.waiting_for != text:
            repository.set_waiting_for(self.context.connection, run.run_id, text)
        return awaited is None

    def _start(self, start: Start) -> None:
        context, run = self.context, start.run
        executor = context.executors.of(spec_of(run).target)
        shares_gpus = bool(start.uuids) and self._may_share(run)
        try:
            locks = self.locks.take(start.uuids, shared=shares_gpus)
        except GpuHeldError as error:
            # Taken since the schedule was made; the next turn sees that.
            repository.set_waiting_for(context.connection, run.run_id, f"waits: {error}")
            return
        try:
            self._launch(start, executor, locks, shares_gpus)
        except (LaunchError, ExecutorGoneError) as error:
            self._cannot_start(run, error)
        finally:
            locks.close()

    def _launch(self, start: Start, executor: Executor, locks: HeldLocks, shares_gpus: bool) -> None:
        context, run, recorder = self.context, start.run, self.context.recorder
        # Raises ExecutorGoneError before anything is written.
        executor.program(context.workspace.run_dir(run.run_id))
        needed = spec_of(run).disk_bytes
        if executor.places_gpus and needed is not None:
            free = shutil.disk_usage(context.workspace.state).free
            if free < needed:
                text = f"needs {bytes_text(needed)} of disk, {bytes_text(free)} are free"
                raise LaunchError(text)
        indices = [recorder.facts[uuid].index for uuid in start.uuids]
        record = prepare_attempt(context, start, indices, executor, lock_files=locks.paths, shares_gpus=shares_gpus)
        self.spawn(record, executor, locks.descriptors)
        for problem in locks.problems:
            context.note("gpu_lock_unusable", problem, run.run_id, severity="warning")

    def _cannot_start(self, run: Run, error: Exception) -> None:
        file = self.context.workspace.run_dir(run.run_id) / SPEC_FILE
        if not file.exists():
            give_up(self.context, run, f"{file} or its folder is gone; launch the run again")
        elif isinstance(error, UnusableSpecError):
            give_up(self.context, run, f"cannot start: {error}")
        elif run.waiting_for != (text := f"cannot start: {error}; trying again"):
            repository.set_waiting_for(self.context.connection, run.run_id, text)


NEWEST_CHECKPOINT = "{newest checkpoint}"
"""Placeholder in attempt.json for the checkpoint that the courier finds on the target."""


class LaunchError(Exception):
    """The attempt cannot be started now; the message says why. Nothing was changed."""


class UnusableSpecError(LaunchError):
    """The run's specification cannot be started, now or later."""


def prepare_attempt(
    context: AgentContext,
    start: Start,
    indices: Sequence[int],
    executor: Executor,
    *,
    lock_files: Sequence[str] = (),
    shares_gpus: bool = False,
) -> Attempt:
    """Prepare the next attempt: its folder, leases, row, and the position where its metrics begin.
    Leases of the run besides those of ``start`` end. ``indices`` are of its GPUs; ``lock_files``
    are held by ``executor``. With ``shares_gpus``, they and the leases are shared within a study.

    Raises LaunchError (UnusableSpecError if a retry is pointless) or sqlite3.Error. At worst an
    unused folder remains.
    """
    connection, ingest, run, now = context.connection, context.ingest, start.run, context.now()
    run_dir, uuids = context.workspace.run_dir(run.run_id), start.uuids
    try:
        (run_dir / "attempts").mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
        # None is used twice, even if a row was lost: torchrun truncates existing logs.
        number = max([run.attempt, *attempt_numbers(run_dir)]) + 1
        spec = read_spec(run_dir / SPEC_FILE)
        env = {**spec.env, **repository.get_next_attempt(connection, run.run_id).env}
        spec = replace(spec, env=env)
        if executor.places_gpus:
            visible = uuids if spec.visible == "uuid" else tuple(str(index) for index in indices)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = int(probe.getsockname()[1])
            placement = Placement.here(visible, spec.ranks_on(len(uuids)), port=port)
        else:
            placement = executor.placement(spec)
        build = partial(
            build_launch,
            spec,
            run_id=run.run_id,
            run_dir=str(run_dir),
            attempt=number,
            params=restore(run.params, spec.params),
            placement=placement,
        )
        launch = build(checkpoint=run.resume_from)
        plan: dict[str, Any] = {
            "output": f"{FIRST_NODE}/{OUTPUT}",
            "run_id": run.run_id,
            "attempt": number,
            "created_at": now,
            "gpus": list(uuids),
            "params": dict(run.params),
            "resume_from": run.resume_from,
            "lock_files": list(lock_files),
            "shares_gpus": shares_gpus,
            "shell": None if spec.shell is None else asdict(spec.shell),
            "agent": agent_for_executor(context.workspace),
        }
        if not executor.places_gpus:
            launch = without_gpus(launch)
            history = []
            if not executor.sees_checkpoints(spec.target or {}):
                history = checkpoint_survey.attempts_to_resume(connection, context.workspace, run)
            plan |= _courier_fields(spec, run_dir, build, history)
            # A start by a person uses the current code, a restart the code of the attempt before.
            plan["keeps_code"] = run.not_before is not None
        folder = run_dir / "attempts" / str(number)
        ends = ingest.ends.of(run.run_id)
        for below in ("", "nodes", FIRST_NODE):
            (folder / below).mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
        plan["metrics_bytes"] = ingest.ends.sizes(run.run_id, ends)
        write_private(folder / "attempt.json", {**launch.to_json(), **plan})
    except ValueError as error:
        raise UnusableSpecError(str(error)) from error
    except OSError as error:
        raise LaunchError(str(error)) from error
    stored = redact_launch(launch, Redactor(secrets_of(spec)))
    with repository.transaction(connection):
        repository.release_leases(connection, run.run_id, keep=uuids)
        repository.take_leases(connection, run.run_id, uuids, now, shared=shares_gpus)
        if start.replaced:
            text = f"{'; '.join(start.replaced)}: replaced"
            context.note("gpus_replaced", text, run.run_id, severity="warning")
        repository.insert_attempt(connection, run, number=number, gpus=uuids, launch=stored, now=now)
        repository.drop_next_attempt(connection, run.run_id)
        checkpoints = checkpoint_directory(spec_of(run), run_dir)
        checkpoint_survey.attempt_begins(connection, run, number, checkpoints, folder)
        ingest.begin_attempt(run.run_id, number, rank_output(spec, len(uuids), folder), ends)
        repository.move(connection, run, RunState.STARTING, cause=f"attempt {number}", now=now)
        where = f" on {len(uuids)} GPU{'s' if len(uuids) != 1 else ''}" if uuids else ""
        where = where if spec.target is None else f" on {spec.target['name']}"
        resumed = f" from {Path(run.resume_from).name}" if run.resume_from else ""
        text = f"attempt {number} starts{where}{resumed}"
        context.note("attempt_started", text, run.run_id, number)
    attempt = get_attempt(connection, run.run_id, number)
    assert attempt is not None
    return attempt


def _courier_fields(
    spec: RunSpec, run_dir: Path, build: Callable[..., Launch], history: list[dict[str, Any]]
) -> dict[str, Any]:
    """Fields of attempt.json for a courier: the target, the requested resources, and how to resume
    from a checkpoint that it finds there, with NEWEST_CHECKPOINT as placeholder. ``history`` are
    the attempts whose checkpoints the first start may use."""
    folder = checkpoint_directory(spec, run_dir)
    resume: dict[str, Any] | None = None
    if spec.checkpoints is not None:
        again = without_gpus(build(checkpoint=NEWEST_CHECKPOINT))
        resume = {"folder": str(folder), "pattern": spec.checkpoints.pattern}
        resume |= {"argv": again.argv, "env": again.env}
    umask = None if spec.shell is None else spec.shell.umask
    paths = [source.path for source in spec.metrics if source.path is not None]
    return {
        # Limits and environment are those of the target; file permissions those of the shell here.
        "shell": None if umask is None else {"umask": umask},
        "target": dict(spec.target or {}),
        "asks": {"gpus": spec.gpus.count, "ranks": spec.nproc},
        "metrics": [str(in_run(path, spec, run_dir)) for path in paths],
        "resume": resume,
        "checkpoints": None if folder is None else str(folder),
        "course": history if resume is not None else [],
    }
