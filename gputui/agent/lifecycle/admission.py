"""Admission of queued runs: start those that may on free GPUs, and store what the others wait for."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gputui.agent.context import AgentContext
from gputui.agent.error_barrier import ErrorBarrier
from gputui.agent.lifecycle import attempt_launch
from gputui.agent.lifecycle.active_run import ActiveRuns, Adopting, Waiting
from gputui.agent.lifecycle.ending import add_notices
from gputui.agent.lifecycle.rebuild import catch_up
from gputui.agent.lifecycle.release import GpuRelease
from gputui.agent.lifecycle.run_files import notice_of, policy_of
from gputui.agent.lifecycle.scheduler import (
    CpuRoom,
    GpuAvailability,
    Start,
    Wait,
    gpus_wanted,
    schedule,
)
from gputui.agent.recording.recorder import Recorder
from gputui.machine.gpu_model import BUSY_BYTES, GpuProcess, unseen_use
from gputui.recovery.actions import go_on_with_fewer
from gputui.recovery.effects import SkippedAction, apply_changes
from gputui.recovery.kinds import SHARED_OOM
from gputui.runs import repository
from gputui.runs.executors.base import Executor, ExecutorGoneError
from gputui.runs.gpu_locks import GpuHeldError
from gputui.runs.repository import transaction
from gputui.runs.spec import SpecError, spec_of
from gputui.runs.submission import SPEC_FILE
from gputui.store import alerts, queue
from gputui.store.attempts import Attempt
from gputui.store.events import add_event, last_kind
from gputui.store.gpu_use import study_peaks
from gputui.store.hardware import quarantined
from gputui.store.run_history import met_incident
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run, queued_runs
from gputui.studies.sharing import trials_on_gpu

# A GPU that is reset, or whose driver is reloaded, is back within minutes.
MISSING_SECONDS = 300.0
# A run waits for its file system without a word for this long.
ANSWER_SECONDS = 2.0
# How long the memory peaks of a study's trials are cached.
PEAKS_SECONDS = 5.0


def waits_for_predecessor(connection: sqlite3.Connection, run: Run) -> str | None:
    """Why a run that follows others does not start yet; None once all of them succeeded, or if it has started before.
    Raises sqlite3.Error."""
    for run_id in spec_of(run).after if not run.attempt else ():
        predecessor = get_run(connection, run_id)
        if predecessor is None:
            return f"waits for {run_id}, which was removed; gputui stop {run.run_id} ends that"
        if predecessor.state is RunState.SUCCEEDED:
            continue
        if predecessor.state.is_over:
            return f"waits for {run_id}, which {predecessor.state}; gputui resume {run_id}, or gputui stop {run.run_id}"
        return f"waits for {run_id} to succeed"
    return None


@dataclass(slots=True)
class Admission:
    """Takes runs from the queue and starts their attempts."""

    context: AgentContext
    runs: ActiveRuns
    guard: ErrorBarrier
    release: GpuRelease
    # Starts an attempt, given its executor, the descriptors of its GPU locks, and the memory used before by GPU.
    spawn: Callable[[Attempt, Executor, Sequence[int], Mapping[str, int | None]], None]
    # Whether the checkpoint that a run begins from is still the chosen one.
    may_start: Callable[[Run], bool]
    # By study: the time of the query (monotonic), and the peaks in bytes by GPU model.
    _peaks: dict[str, tuple[float, dict[str, int]]] = field(init=False, default_factory=dict)
    # When the ends of a run's metrics files were first asked for, by run (monotonic).
    _survey_began_at: dict[str, float] = field(init=False, default_factory=dict)

    def availability(self) -> list[GpuAvailability] | None:
        """The availability of each GPU, or None before the first inventory."""
        return gpu_availability(self.context, self.release.uuids(), self.release.locks.is_held, self.release.held())

    def turn(self) -> bool:
        """Start as many runs as a turn has time for, and store what the others wait for. True if none is left that may
        start. Raises sqlite3.Error."""
        waiting = [run for run in queued_runs(self.context.connection) if self.is_understood(run)]
        queued = {run.run_id for run in waiting}
        for active, phase in self.runs.waiting():
            if phase.due_at is None and active.run_id not in queued:
                # It was stopped or removed while it waited.
                active.phase = None
        if not waiting:
            return True
        paused = queue.pause(self.context.connection) is not None
        cpu = CpuRoom.of(len(os.sched_getaffinity(0)), repository.cpu_ranks(self.context.connection))
        executors = self.context.executors
        outcomes = schedule(
            waiting,
            self.availability(),
            paused=paused,
            cpu=cpu,
            places_gpus=lambda run: executors.of(spec_of(run).target).places_gpus,
            predecessor=lambda run: waits_for_predecessor(self.context.connection, run),
            share_of=self._share_of,
        )
        self._track_missing_gpus(outcomes)
        is_done, is_one_started = True, False
        reasons: list[tuple[str, str]] = []
        for outcome in outcomes:
            run_id = outcome.run.run_id
            if isinstance(outcome, Start):
                if is_one_started and self.context.turn.is_spent():
                    is_done = False
                elif not self.guard.is_resting(run_id):
                    is_one_started = True
                    with self.guard.around(run_id):
                        if self.may_start(outcome.run) and self._answers(outcome.run):
                            self._start(outcome)
            elif self._has_missed_gpus_long(outcome):
                with self.guard.around(run_id):
                    self._continue_with_fewer(outcome)
            elif outcome.run.waiting_for != outcome.reason:
                reasons.append((outcome.reason, run_id))
        if reasons:
            with transaction(self.context.connection) as connection:
                connection.executemany("UPDATE runs SET waiting_for = ? WHERE run_id = ?", reasons)
        return is_done

    def is_understood(self, run: Run) -> bool:
        """Whether the run's specification can be read. If not, the run fails, and no other run with it."""
        try:
            return spec_of(run) is not None and run.params is not None
        except SpecError as error:
            with self.guard.around(run.run_id):
                reason = f"this gputui cannot read it: {error}; update gputui and restart it, or launch it again"
                give_up(self.context, run, reason)
            return False

    def _may_share(self, run: Run) -> bool:
        """Whether the run is a trial that shares its GPU. It stops to do so after an out-of-memory error."""
        spec = spec_of(run)
        is_meant = spec.trials_per_gpu > 1 and spec.study_id is not None and gpus_wanted(run) == 1
        return is_meant and not met_incident(self.context.connection, run.run_id, SHARED_OOM)

    def _share_of(self, run: Run, gpu: GpuAvailability) -> int:
        """Number of the study's trials that may use a GPU at a time. Raises sqlite3.Error."""
        facts, now = self.context.recorder.facts.get(gpu.uuid), self.context.monotonic()
        spec = spec_of(run)
        if facts is None or spec.study_id is None or not self._may_share(run):
            return 1
        cached = self._peaks.get(spec.study_id)
        if cached is None or now - cached[0] >= PEAKS_SECONDS:
            cached = now, study_peaks(self.context.connection, spec.study_id)
            self._peaks[spec.study_id] = cached
        foreign = _foreign_bytes(self.context.recorder, gpu.uuid)
        return trials_on_gpu(spec.trials_per_gpu, gpu.total_bytes, foreign, cached[1].get(facts.name))

    def _track_missing_gpus(self, outcomes: Sequence[Start | Wait]) -> None:
        """Keep the time since when runs lack GPUs that only a person or the driver can bring back."""
        short = {
            outcome.run.run_id for outcome in outcomes if isinstance(outcome, Wait) and outcome.in_service is not None
        }
        for active, phase in self.runs.waiting():
            if active.run_id not in short:
                phase.short_since = None
        for run_id in short:
            phase = self.runs.waiting_of(run_id)
            if phase.short_since is None:
                phase.short_since = self.context.monotonic()

    def _has_missed_gpus_long(self, wait: Wait) -> bool:
        """Whether GPUs that a run held are missing for MISSING_SECONDS. An unresponsive driver does not count."""
        inventory = self.context.recorder.inventory
        active = self.runs.get(wait.run.run_id)
        since = active.phase.short_since if active is not None and isinstance(active.phase, Waiting) else None
        if since is None or inventory is None or inventory.problem is not None:
            return False
        return self.context.monotonic() - since >= MISSING_SECONDS

    def _continue_with_fewer(self, wait: Wait) -> None:
        """Continue with fewer GPUs by the rule of exclude_gpu if the run's policy has that action; else fail the
        run."""
        run, remaining = wait.run, wait.in_service or 0
        missing = [gpu for gpu in self.availability() or () if run.run_id in gpu.holders and gpu.out_of_service]
        names = ", ".join(gpu.name for gpu in missing)
        reason = f"{'; '.join(f'{gpu.name} {gpu.blocked_by}' for gpu in missing)}, for {MISSING_SECONDS / 60:.0f} min"
        ladder = policy_of(run).ladder("gpu_lost")
        if not any(action.name == "exclude_gpu" for rung in ladder for action in rung):
            give_up(self.context, run, f"{reason}; its policy does not exclude GPUs")
            return
        result = go_on_with_fewer(spec_of(run), run.params, gpus_wanted(run), remaining, names)
        if isinstance(result, SkippedAction):
            give_up(self.context, run, f"{reason}; {result.why}")
            return
        with transaction(self.context.connection) as connection:
            repository.set_next_attempt(
                connection,
                run.run_id,
                params=apply_changes(run.params, (result,)),
                resume_from=run.resume_from,
                not_before=run.not_before,
            )
            repository.set_gpu_count(connection, run.run_id, remaining)
            text = f"{reason}: {result.note}"
            add_event(connection, "gpus_reduced", text, now=self.context.now(), severity="warning", run_id=run.run_id)

    def _answers(self, run: Run) -> bool:
        """Whether the ends of the run's metrics files are known, behind which the new attempt's lines begin. They are
        read in the background, because the file system may not answer."""
        awaited = self.context.ingest.ends.awaited(run.run_id)
        if awaited is None:
            return True
        began_at = self._survey_began_at.setdefault(run.run_id, self.context.monotonic())
        text = f"waits for {awaited} to answer"
        if self.context.monotonic() - began_at >= ANSWER_SECONDS and run.waiting_for != text:
            repository.set_waiting_for(self.context.connection, run.run_id, text)
        return False

    def _start(self, start: Start) -> None:
        self._survey_began_at.pop(start.run.run_id, None)
        if catch_up(self.context, start.run):
            # The database was restored from a backup: what lives is adopted, and nothing is begun beside it.
            self.runs.of(start.run.run_id).phase = Adopting()
            return
        facts = self.context.recorder.facts
        indices = [facts[uuid].index for uuid in start.uuids]
        disk = spec_of(start.run).disk_bytes
        executor = self.context.executors.of(spec_of(start.run).target)
        shares_gpus = bool(start.uuids) and self._may_share(start.run)
        try:
            gpu_locks = self.release.locks.take(start.uuids, shared=shares_gpus)
        except GpuHeldError as error:
            # Taken since the schedule was made; the next turn sees that.
            repository.set_waiting_for(self.context.connection, start.run.run_id, f"waits: {error}")
            return
        try:
            # Raises ExecutorGoneError before anything is written.
            executor.program(self.context.workspace.run_dir(start.run.run_id))
            if executor.places_gpus and disk is not None:
                free = shutil.disk_usage(self.context.workspace.state).free
                if free < disk:
                    raise attempt_launch.LaunchError(
                        f"needs {disk / 2**30:.1f} GiB of disk, {free / 2**30:.1f} GiB are free"
                    )
            record = attempt_launch.prepare_attempt(
                self.context.connection,
                self.context.ingest,
                self.context.workspace,
                start.run,
                start.uuids,
                indices,
                self.context.now(),
                replaced=start.replaced,
                taken_from=start.taken_from,
                lock_files=gpu_locks.paths,
                shares_gpus=shares_gpus,
                executor=executor,
            )
            leases = repository.leases(self.context.connection)
            # On a shared GPU, the memory of other trials says nothing about this one's, nor does the host's.
            recorder = self.context.recorder
            baseline = {
                uuid: sample.memory_used_bytes
                if len(leases[uuid].run_ids) == 1
                and (sample := recorder.fast.get(uuid))
                and not recorder.facts[uuid].memory_is_unified
                else None
                for uuid in start.uuids
            }
            self.spawn(record, executor, gpu_locks.descriptors, baseline)
            for problem in gpu_locks.problems:
                add_event(
                    self.context.connection,
                    "gpu_lock_unusable",
                    problem,
                    now=self.context.now(),
                    severity="warning",
                    run_id=start.run.run_id,
                )
        except (attempt_launch.LaunchError, ExecutorGoneError) as error:
            self._cannot_start(start.run, error)
        finally:
            gpu_locks.close()

    def _cannot_start(self, run: Run, error: Exception) -> None:
        folder = self.context.workspace.run_dir(run.run_id)
        if not folder.exists():
            give_up(self.context, run, "its folder is gone; launch it again")
            return
        if not (folder / SPEC_FILE).exists():
            remedy = "put it back and resume or restart the run, or launch it again"
            give_up(self.context, run, f"its {SPEC_FILE} is gone from {folder}; {remedy}")
            return
        if isinstance(error, attempt_launch.UnusableSpecError):
            give_up(self.context, run, f"cannot start: {error}")
            return
        text = f"cannot start: {error}; trying again"
        if run.waiting_for == text:
            return
        last = last_kind(self.context.connection, run.run_id, ("cannot_start", "attempt_started", "requeued"))
        with transaction(self.context.connection) as connection:
            repository.set_waiting_for(connection, run.run_id, text)
            if last is None or last[0] != "cannot_start":
                add_event(
                    connection, "cannot_start", text, now=self.context.now(), severity="warning", run_id=run.run_id
                )


def give_up(context: AgentContext, run: Run, reason: str) -> None:
    """End a run that cannot start (again) as failed, and send its notices. Raises sqlite3.Error."""
    notice, now = notice_of(context.workspace, run.run_id), context.now()
    row = context.connection.execute(
        "SELECT kind, summary FROM incidents WHERE run_id = ? ORDER BY incident_id DESC LIMIT 1", (run.run_id,)
    ).fetchone()
    kind, summary = row or ("unknown", "it could not be started")
    with transaction(context.connection) as connection:
        repository.move(connection, run, RunState.FAILED, cause=reason, now=now)
        repository.release_leases(connection, run.run_id)
        add_notices(connection, notice, run, kind, summary, reason, verdict="stop", now=now)
        add_event(connection, "failed", reason, now=now, severity="error", run_id=run.run_id)


def gpu_availability(
    context: AgentContext,
    draining: Collection[str],
    is_locked: Callable[[str], bool] = lambda _uuid: False,
    held: Collection[str] = (),
) -> list[GpuAvailability] | None:
    """All GPUs that the driver lists, then leased ones that it does not list; None before the first inventory.

    ``draining`` are the UUIDs of GPUs that are being released, ``held`` those among them that unkillable processes
    hold. ``is_locked`` tells whether another home holds the lock of a GPU. Raises sqlite3.Error.
    """
    connection, recorder = context.connection, context.recorder
    inventory = recorder.inventory
    if inventory is None:
        return None
    holders = repository.leases(connection)
    # Held by executors of this home.
    in_use = repository.leases_in_use(connection)
    failed = quarantined(connection)
    alerted = {alert.subject_id for alert in alerts.lasting(connection)}
    gpus = []
    for gpu in inventory.gpus:
        sample = recorder.fast.get(gpu.uuid)
        blocked_by = None
        if gpu.uuid in failed:
            blocked_by = f"is in quarantine ({failed[gpu.uuid].reason})"
        elif sample is None:
            blocked_by = "has not been read yet"
        elif sample.state != "ok":
            blocked_by = "is lost" if sample.state == "lost" else f"has an error: {sample.detail}"
        elif gpu.uuid in draining:
            words = "is held by a process" if gpu.uuid in held else "still holds memory"
            blocked_by = f"{words} of the previous attempt"
        elif gpu.mig_mode:
            blocked_by = "is split by MIG"
        else:
            foreign = _foreign_process(recorder, gpu.uuid)
            if foreign is not None:
                blocked_by = f"is used by {foreign.user or 'another user'} (pid {foreign.pid})"
            elif gpu.uuid not in in_use and is_locked(gpu.uuid):
                blocked_by = "is held by another home or user"
            elif gpu.uuid not in holders and not recorder.processes.get(gpu.uuid):
                own_used = None if gpu.memory_is_unified else sample.memory_used_bytes
                blocked_by = unseen_use(own_used, sample.utilization_percent)
        total = (sample.memory_total_bytes if sample else None) or gpu.memory_total_bytes
        used = sample.memory_used_bytes if sample else None
        free = None if total is None or used is None else total - used
        # Only a person can end these states.
        is_out = gpu.uuid in failed or bool(gpu.mig_mode) or (sample is not None and sample.state != "ok")
        is_drained_soon = gpu.uuid in draining and gpu.uuid not in held
        is_settling = gpu.uuid not in failed and (sample is None or (sample.state == "ok" and is_drained_soon))
        run_ids, shared_by = holders.get(gpu.uuid, ((), None))
        gpus.append(
            GpuAvailability(
                gpu.uuid,
                gpu.index,
                run_ids,
                blocked_by,
                free,
                is_out,
                is_settling,
                total,
                shared_by,
                gpu.uuid in alerted,
            )
        )
    listed = {gpu.uuid for gpu in inventory.gpus}
    missing = "is missing: " + (inventory.problem or "the driver does not list it")
    return gpus + [
        GpuAvailability(uuid, None, held.run_ids, missing, out_of_service=True, shared_by=held.shared_by)
        for uuid, held in holders.items()
        if uuid not in listed
    ]


def _foreign_bytes(recorder: Recorder, uuid: str) -> int | None:
    """A GPU's memory that no run of this home uses: the driver's and that of other processes; None if unknown."""
    processes, sample = recorder.processes.get(uuid), recorder.fast.get(uuid)
    if processes is None:
        return None
    sizes = [process.memory_bytes for process in processes if recorder.owner(process) is None]
    known_sizes = [size for size in sizes if size is not None]
    reserved = sample.memory_reserved_bytes if sample is not None else None
    return sum(known_sizes) + (reserved or 0) if len(known_sizes) == len(sizes) else None


def _foreign_process(recorder: Recorder, uuid: str) -> GpuProcess | None:
    """A process on the GPU that belongs to no run of this home, except for graphics with little memory."""
    for process in recorder.processes.get(uuid) or ():
        heavy = process.kind != "G" or (process.memory_bytes or 0) >= BUSY_BYTES
        if heavy and recorder.owner(process) is None:
            return process
    return None
