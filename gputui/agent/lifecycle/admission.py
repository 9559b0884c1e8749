"""Starting: which queued runs may start on which GPUs, and the reason of those that cannot."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gputui.agent.context import AgentContext
from gputui.agent.error_barrier import ErrorBarrier
from gputui.agent.lifecycle import attempt_launch
from gputui.agent.lifecycle.active_run import ActiveRuns, Waiting
from gputui.agent.lifecycle.ending import owe_notices
from gputui.agent.lifecycle.release import GpuRelease
from gputui.agent.lifecycle.run_files import notice_of, policy_of
from gputui.agent.lifecycle.scheduler import (
    FOREIGN_BUSY_BYTES,
    CpuRoom,
    GpuAvailability,
    Start,
    Wait,
    gpus_wanted,
    schedule,
)
from gputui.agent.recording.recorder import Recorder
from gputui.config import Workspace
from gputui.gpu.model import GpuProcess
from gputui.recovery.action_results import SkippedAction, apply_changes
from gputui.recovery.kinds import SHARED_OOM
from gputui.recovery.machine_actions import go_on_with_fewer
from gputui.runs import repository
from gputui.runs.executors.base import Executor, ExecutorGoneError
from gputui.runs.gpu_locks import GpuHeldError, GpuLocks, group_of
from gputui.runs.repository import transaction
from gputui.runs.spec import SpecError, spec_of
from gputui.runs.submission import SPEC_FILE
from gputui.store import queue
from gputui.store.attempts import Attempt
from gputui.store.events import add_event, last_kind
from gputui.store.hardware import quarantined
from gputui.store.memory_peaks import study_peaks
from gputui.store.run_history import met_incident
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run, queued_runs
from gputui.studies.sharing import trials_on_gpu

# A driver that is loaded, or a GPU that is reset, is back within minutes.
MISSING_SECONDS = 300.0
# How long what the trials of a study took at most is taken for known.
PEAKS_SECONDS = 5.0


def waits_for_predecessor(connection: sqlite3.Connection, run: Run) -> str | None:
    """Why a run that was launched to follow others does not start yet; None once all of them have succeeded, or it has
    started before. Raises sqlite3.Error."""
    for run_id in spec_of(run).after if not run.attempt else ():
        found = get_run(connection, run_id)
        if found is None:
            return f"waits for {run_id}, which was removed; gputui stop {run.run_id} ends that"
        if found.state is RunState.SUCCEEDED:
            continue
        if found.state.is_over:
            return f"waits for {run_id}, which {found.state}; gputui resume {run_id}, or gputui stop {run.run_id}"
        return f"waits for {run_id} to succeed"
    return None


@dataclass(slots=True)
class Admission:
    """The way from the queue to a prepared attempt, which ``spawn`` brings to life, given its executor, the
    descriptors of the GPUs' locks and the memory in use on each before (bytes).

    ``may_start`` says whether the checkpoint that a run begins from is still the one that was chosen.
    """

    context: AgentContext
    runs: ActiveRuns
    guard: ErrorBarrier
    draining: GpuRelease
    spawn: Callable[[Attempt, Executor, Sequence[int], Mapping[str, int | None]], None]
    may_start: Callable[[Run], bool]
    locks: GpuLocks = field(init=False)
    # By study: when its trials' peaks were looked up (monotonic), and what they are by kind of GPU.
    _peaks: dict[str, tuple[float, dict[str, int]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.locks = GpuLocks.of(self.context.workspace, os.environ)

    def standings(self) -> list[GpuAvailability] | None:
        """The availability of each GPU for the scheduler, or None before the first inventory."""
        draining = self.draining
        return standings(self.context, draining.uuids(), self.locks.holder, draining.held())

    def turn(self) -> bool:
        """Start queued runs that may, as many as a turn has time for, and write down what the others wait for; whether
        none is left that may start. Raises sqlite3.Error."""
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
            self.standings(),
            paused=paused,
            cpu=cpu,
            places_gpus=lambda run: executors.of(spec_of(run).target).places_gpus,
            predecessor=lambda run: waits_for_predecessor(self.context.connection, run),
            share_of=self._share_of,
        )
        self._note_short(outcomes)
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
                        if self.may_start(outcome.run):
                            self._start(outcome)
            elif self._is_short_for_good(outcome):
                with self.guard.around(run_id):
                    self._do_without(outcome)
            elif outcome.run.waiting_for != outcome.reason:
                reasons.append((outcome.reason, run_id))
        if reasons:
            with transaction(self.context.connection) as connection:
                connection.executemany("UPDATE runs SET waiting_for = ? WHERE run_id = ?", reasons)
        return is_done

    def is_understood(self, run: Run) -> bool:
        """Whether the run's row can be understood; the run fails where it cannot, and no other with it."""
        try:
            return spec_of(run) is not None and run.params is not None
        except SpecError as error:
            with self.guard.around(run.run_id):
                why = f"this gputui cannot read it: {error}; update gputui and restart it, or launch it again"
                give_up(self.context, run, why)
            return False

    def _may_share(self, run: Run) -> bool:
        """Whether the run is a trial that is to share its GPU: not where memory ran out when it did so."""
        spec = spec_of(run)
        is_meant = spec.trials_per_gpu > 1 and spec.study_id is not None and gpus_wanted(run) == 1
        return is_meant and not met_incident(self.context.connection, run.run_id, SHARED_OOM)

    def _share_of(self, run: Run, gpu: GpuAvailability) -> int:
        """How many trials of the run's study may be on a GPU at a time. Raises sqlite3.Error."""
        facts, now = self.context.recorder.facts.get(gpu.uuid), self.context.monotonic()
        spec = spec_of(run)
        if facts is None or spec.study_id is None or not self._may_share(run):
            return 1
        known = self._peaks.get(spec.study_id)
        if known is None or now - known[0] >= PEAKS_SECONDS:
            known = now, study_peaks(self.context.connection, spec.study_id)
            self._peaks[spec.study_id] = known
        foreign = _foreign_bytes(self.context.recorder, gpu.uuid)
        return trials_on_gpu(spec.trials_per_gpu, gpu.total_bytes, foreign, known[1].get(facts.name))

    def _note_short(self, outcomes: Sequence[Start | Wait]) -> None:
        """Note since when runs lack GPUs that only a person or a driver can bring back."""
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

    def _is_short_for_good(self, wait: Wait) -> bool:
        """Whether GPUs that a run held stayed away for so long that it must do without. While the driver does not
        answer at all, they are not known to be gone."""
        inventory = self.context.recorder.inventory
        active = self.runs.get(wait.run.run_id)
        since = active.phase.short_since if active is not None and isinstance(active.phase, Waiting) else None
        if since is None or inventory is None or inventory.problem is not None:
            return False
        return self.context.monotonic() - since >= MISSING_SECONDS

    def _do_without(self, wait: Wait) -> None:
        """Go on with fewer GPUs by the rule of exclude_gpu, where the run's policy has that; else stop."""
        run, left = wait.run, wait.in_service or 0
        gone = [gpu for gpu in self.standings() or () if run.run_id in gpu.holders and gpu.out_of_service]
        names = ", ".join(gpu.name for gpu in gone)
        why = f"{'; '.join(f'{gpu.name} {gpu.blocked_by}' for gpu in gone)}, for {MISSING_SECONDS / 60:.0f} min"
        ladder = policy_of(run).ladder("gpu_lost")
        if not any(action.name == "exclude_gpu" for rung in ladder for action in rung):
            give_up(self.context, run, f"{why}; its policy does not exclude GPUs")
            return
        result = go_on_with_fewer(spec_of(run), run.params, gpus_wanted(run), left, names)
        if isinstance(result, SkippedAction):
            give_up(self.context, run, f"{why}; {result.why}")
            return
        with transaction(self.context.connection) as connection:
            repository.set_next_attempt(
                connection,
                run.run_id,
                params=apply_changes(run.params, (result,)),
                resume_from=run.resume_from,
                not_before=run.not_before,
            )
            repository.set_gpu_count(connection, run.run_id, left)
            text = f"{why}: {result.note}"
            add_event(connection, "gpus_reduced", text, now=self.context.now(), severity="warning", run_id=run.run_id)

    def _start(self, start: Start) -> None:
        facts = self.context.recorder.facts
        indices = [facts[uuid].index for uuid in start.uuids]
        disk = spec_of(start.run).disk_bytes
        executor = self.context.executors.of(spec_of(start.run).target)
        group = None
        if start.uuids and self._may_share(start.run):
            group = group_of(self.context.workspace, spec_of(start.run).study_id or "")
        try:
            held = self.locks.take(start.uuids, group)
        except GpuHeldError as error:
            # Taken since it was looked at; the next turn sees that.
            repository.set_waiting_for(self.context.connection, start.run.run_id, f"waits: {error}")
            return
        try:
            # Asked before anything is written.
            executor.program(self.context.workspace.run_dir(start.run.run_id))
            if executor.places_gpus and disk is not None and (free := free_disk_bytes(self.context.workspace)) < disk:
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
                lock_files=held.paths,
                lock_group=group,
                executor=executor,
            )
            leases = repository.leases(self.context.connection)
            # What fellows hold says nothing of what is back after this one.
            baseline = {
                uuid: sample.memory_used_bytes
                if len(leases[uuid].run_ids) == 1 and (sample := self.context.recorder.fast.get(uuid))
                else None
                for uuid in start.uuids
            }
            self.spawn(record, executor, held.descriptors, baseline)
            for problem in held.problems:
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
            held.close()

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


def give_up(context: AgentContext, run: Run, why: str) -> None:
    """End a run that cannot start (again) as failed, and owe its notices. Raises sqlite3.Error."""
    notice, now = notice_of(context.workspace, run.run_id), context.now()
    kind, summary = last_incident(context.connection, run.run_id) or ("unknown", "it could not be started")
    with transaction(context.connection) as connection:
        repository.move(connection, run, RunState.FAILED, cause=why, now=now)
        repository.release_leases(connection, run.run_id)
        owe_notices(connection, notice, run, kind, summary, why, verdict="stop", now=now)
        add_event(connection, "failed", why, now=now, severity="error", run_id=run.run_id)


def last_incident(connection: sqlite3.Connection, run_id: str) -> tuple[str, str] | None:
    """Kind and summary of a run's newest incident, or None if it met none."""
    row = connection.execute(
        "SELECT kind, summary FROM incidents WHERE run_id = ? ORDER BY incident_id DESC LIMIT 1", (run_id,)
    ).fetchone()
    return None if row is None else (row[0], row[1])


def free_disk_bytes(workspace: Workspace) -> int:
    """What a run may still write into the home."""
    status = os.statvfs(workspace.state)
    return status.f_bavail * status.f_frsize


def standings(
    context: AgentContext,
    draining: Collection[str],
    holder_of: Callable[[str], str | None] = lambda _uuid: None,
    held: Collection[str] = (),
) -> list[GpuAvailability] | None:
    """Every GPU that the driver lists, then those that are leased and not listed; None before the first inventory.
    ``draining`` are the UUIDs of those whose memory is not back yet; ``holder_of`` says who else holds the lock of one.
    ``held`` are those of ``draining`` that processes keep which nothing could end. Raises sqlite3.Error."""
    connection, recorder = context.connection, context.recorder
    inventory = recorder.inventory
    if inventory is None:
        return None
    holders = repository.leases(connection)
    # Held by executors of this home.
    in_use = repository.leases_in_use(connection)
    failed = quarantined(connection)
    found = []
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
            stranger = _stranger(recorder, gpu.uuid)
            if stranger is not None:
                blocked_by = f"is used by {stranger.user or 'another user'} (pid {stranger.pid})"
            elif gpu.uuid not in in_use and (other := holder_of(gpu.uuid)) is not None:
                blocked_by = f"is held by {other}"
        total = (sample.memory_total_bytes if sample else None) or gpu.memory_total_bytes
        used = sample.memory_used_bytes if sample else None
        free = None if total is None or used is None else total - used
        # Only a person ends these, at an unknown time.
        is_out = gpu.uuid in failed or bool(gpu.mig_mode) or (sample is not None and sample.state != "ok")
        is_drained_soon = gpu.uuid in draining and gpu.uuid not in held
        is_settling = gpu.uuid not in failed and (sample is None or (sample.state == "ok" and is_drained_soon))
        run_ids, shared_by = holders.get(gpu.uuid, ((), None))
        found.append(
            GpuAvailability(gpu.uuid, gpu.index, run_ids, blocked_by, free, is_out, is_settling, total, shared_by)
        )
    listed = {gpu.uuid for gpu in inventory.gpus}
    missing = "is missing: " + (inventory.problem or "the driver does not list it")
    return found + [
        GpuAvailability(uuid, None, held.run_ids, missing, out_of_service=True, shared_by=held.shared_by)
        for uuid, held in holders.items()
        if uuid not in listed
    ]


def _foreign_bytes(recorder: Recorder, uuid: str) -> int | None:
    """How much of a GPU's memory is no run's of this home: the driver's and that of other processes; None if that is
    not known."""
    processes, sample = recorder.processes.get(uuid), recorder.fast.get(uuid)
    if processes is None:
        return None
    held = [process.memory_bytes for process in processes if recorder.owner(process) is None]
    known = [size for size in held if size is not None]
    reserved = sample.memory_reserved_bytes if sample is not None else None
    return sum(known) + (reserved or 0) if len(known) == len(held) else None


def _stranger(recorder: Recorder, uuid: str) -> GpuProcess | None:
    for process in recorder.processes.get(uuid) or ():
        heavy = process.kind != "G" or (process.memory_bytes or 0) >= FOREIGN_BUSY_BYTES
        if heavy and recorder.owner(process) is None:
            return process
    return None
