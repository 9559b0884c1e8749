"""Admission: start the queued runs that may on free GPUs, and store what the others wait for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from gputui.agent.context import AgentContext
from gputui.agent.error_barrier import ErrorBarrier
from gputui.agent.lifecycle.attempt_end import give_up
from gputui.agent.lifecycle.gpus import GpuHolds, foreign_bytes, gpu_availability
from gputui.agent.lifecycle.preparation import Grant, LaunchError, UnusableSpecError, prepare_attempt
from gputui.agent.lifecycle.run_files import living_attempt, policy_of
from gputui.agent.lifecycle.source_search import lists_files_before
from gputui.agent.lifecycle.start_conditions import check_before_start
from gputui.core.units import bytes_text
from gputui.recovery.actions import go_on_with_fewer
from gputui.recovery.effects import SkippedAction, apply_changes
from gputui.recovery.kinds import SHARED_OOM
from gputui.runs import repository
from gputui.runs.executors.base import Executor, ExecutorGoneError
from gputui.runs.gpu_locks import GpuHeldError, GpuLocks, HeldLocks
from gputui.runs.scheduler import (
    GpuAvailability,
    Start,
    Wait,
    gpus_wanted,
    read_waiting_runs,
    schedule,
    shares_by_fraction,
)
from gputui.runs.stored_spec import spec_of
from gputui.runs.submission import SPEC_FILE
from gputui.store.attempts import Attempt
from gputui.store.gpu_use import study_peaks
from gputui.store.hardware import set_locks
from gputui.store.run_history import met_incident
from gputui.store.runs import Run
from gputui.studies.decide import trials_on_gpu

# A GPU that is reset, or whose driver is reloaded, is back within minutes.
MISSING_SECONDS = 300.0
LEAST_CPU_RANKS = 16  # few cores run many small ranks on the CPU


@dataclass(slots=True)
class Admission:
    """Takes runs from the queue and starts their attempts.

    Attributes:
        holds: the GPUs that processes of ended attempts hold.
        locks: the locks that all homes on this machine respect.
        spawn: starts an attempt, given its executor and the descriptors of its GPU locks.
        short_since: since when GPUs of a run are missing, by run id (monotonic).
        _locked_by: who holds the lock of a GPU, by its UUID, as stored for the views.
    """

    context: AgentContext
    barrier: ErrorBarrier
    holds: GpuHolds
    locks: GpuLocks
    spawn: Callable[[Attempt, Executor, Sequence[int]], None]
    short_since: dict[str, float] = field(default_factory=dict)
    _locked_by: dict[str, str | None] = field(default_factory=dict)

    def note_locks(self) -> None:
        """Store which GPUs another home or user holds. Raises sqlite3.Error."""
        connection = self.context.connection
        uuids = list(self.context.recorder.facts)
        in_use = repository.leases_in_use(connection)
        holders = {uuid: self.locks.holder(uuid) for uuid in uuids if uuid not in in_use}
        locked_by = {uuid: holders.get(uuid) for uuid in uuids}
        if locked_by != self._locked_by:
            set_locks(connection, locked_by)
            self._locked_by = locked_by

    def availability(self) -> list[GpuAvailability] | None:
        """The availability of each GPU, or None before the first inventory."""
        return gpu_availability(self.context, self.holds.uuids(), self.locks.holder)

    def poll(self) -> bool:
        """Start as many runs as a turn has time for, and store what the others wait for. True if
        none is left that may start. Raises sqlite3.Error."""
        context = self.context
        connection = self.context.connection
        waiting = read_waiting_runs(connection, context.now())
        if not waiting.runs:
            return True
        outcomes = schedule(
            waiting,
            self.availability(),
            # More on small machines, because such runs often wait for a disk or a network.
            cpu_limit=max(len(os.sched_getaffinity(0)), LEAST_CPU_RANKS),
            cpu_running=repository.cpu_ranks(connection),
            places_gpus=lambda run: context.executors.of(spec_of(run).target).places_gpus,
            share_of=partial(self._share_of, {}),
        )
        lacking_gpus = self._runs_lacking_gpus(outcomes)
        is_done = True
        is_one_started = False
        reasons: list[tuple[str, str]] = []
        for outcome in outcomes:
            run_id = outcome.run.run_id
            if isinstance(outcome, Start):
                if is_one_started and context.budget.is_spent():
                    is_done = False
                elif not self.barrier.is_resting(run_id):
                    is_one_started = True
                    with self.barrier.guard(run_id):
                        self._start_when_prepared(outcome)
            elif run_id in lacking_gpus:
                with self.barrier.guard(run_id):
                    self._continue_with_fewer(outcome)
            elif outcome.run.waiting_for != outcome.reason:
                reasons.append((outcome.reason, run_id))
        if reasons:
            with repository.transaction(connection):
                connection.executemany("UPDATE runs SET waiting_for = ? WHERE run_id = ?", reasons)
        return is_done

    def _start_when_prepared(self, start: Start) -> None:
        """Start a run once what its new attempt finds is known, and nothing is against it."""
        run = start.run
        is_prepared = self._knows_ends_of_files(run) and lists_files_before(self.context, run)
        if is_prepared and check_before_start(self.context, run):
            self._start(start)

    def _may_share(self, run: Run) -> bool:
        """Return whether the run takes a part of its GPU, until it runs out of memory there."""
        if spec_of(run).gpus.share == 1 or gpus_wanted(run) != 1:
            return False
        return not met_incident(self.context.connection, run.run_id, SHARED_OOM)

    def _share_of(self, peaks: dict[str, dict[str, int]], run: Run, gpu: GpuAvailability) -> int:
        """Number of runs that may use a GPU at a time, by the memory of a study's trials. ``peaks``
        collects, by study, their memory peaks in bytes by GPU model. Raises sqlite3.Error."""
        facts = self.context.recorder.facts.get(gpu.uuid)
        spec = spec_of(run)
        if facts is None or not self._may_share(run):
            return 1
        if spec.study_id is None:
            return shares_by_fraction(run, gpu)
        if spec.study_id not in peaks:
            peaks[spec.study_id] = study_peaks(self.context.connection, spec.study_id)
        foreign = foreign_bytes(self.context.recorder, gpu.uuid)
        peak = peaks[spec.study_id].get(facts.name)
        return trials_on_gpu(round(1 / spec.gpus.share), gpu.total_bytes, foreign, peak)

    def _runs_lacking_gpus(self, outcomes: Sequence[Start | Wait]) -> set[str]:
        """The runs that have lacked GPUs for MISSING_SECONDS that only a person or the driver can
        bring back. An unresponsive driver does not count."""
        now = self.context.monotonic()
        inventory = self.context.recorder.inventory
        before = self.short_since
        waits = [outcome for outcome in outcomes if isinstance(outcome, Wait)]
        short = [wait.run.run_id for wait in waits if wait.in_service is not None]
        self.short_since = {run_id: before.get(run_id, now) for run_id in short}
        if inventory is None or inventory.problem is not None:
            return set()
        return {run_id for run_id, since in self.short_since.items() if now - since >= MISSING_SECONDS}

    def _continue_with_fewer(self, wait: Wait) -> None:
        """Give back the leases of a run for which enough GPUs are in service: it waits for another run's,
        which may wait for its.

        Else continue with fewer by the rule of exclude_gpu if the policy has that action, or fail the run.
        """
        run = wait.run
        remaining = wait.in_service or 0
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
        names = ", ".join(gpu.name for gpu in missing)
        gpu_count = gpus_wanted(run)
        result = go_on_with_fewer(spec_of(run), run.params, gpu_count, remaining, names)
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

    def _knows_ends_of_files(self, run: Run) -> bool:
        """Return whether the ends of the run's metrics files are known, behind which the new
        attempt's lines begin. They are read in the background: the file system may not answer."""
        awaited = self.context.ingest.ends.awaited(run.run_id)
        text = f"waits for {awaited} to answer"
        if awaited is not None and run.waiting_for != text:
            repository.set_waiting_for(self.context.connection, run.run_id, text)
        return awaited is None

    def _start(self, start: Start) -> None:
        context = self.context
        run = start.run
        if (number := living_attempt(context.workspace, run.run_id)) is not None:
            text = (
                f"waits for the end of attempt {number}, which lives; gputui agent stop, and the next agent adopts it"
            )
            if run.waiting_for != text:
                repository.set_waiting_for(context.connection, run.run_id, text)
            return
        executor = context.executors.of(spec_of(run).target)
        share = 1.0
        if start.uuids and self._may_share(run):
            share = spec_of(run).gpus.share
        try:
            locks = self.locks.take(start.uuids, shared=share < 1)
        except GpuHeldError as error:
            # Taken since the schedule was made; the next turn sees that.
            repository.set_waiting_for(context.connection, run.run_id, f"waits: {error}")
            return
        try:
            self._launch(start, executor, locks, share)
        except (LaunchError, ExecutorGoneError) as error:
            self._note_failed_start(run, error)
        finally:
            locks.close()

    def _launch(self, start: Start, executor: Executor, locks: HeldLocks, share: float) -> None:
        context = self.context
        run = start.run
        recorder = self.context.recorder
        # Raises ExecutorGoneError before anything is written.
        executor.program(context.workspace.run_dir(run.run_id))
        needed = spec_of(run).disk_bytes
        if executor.places_gpus and needed is not None:
            free = shutil.disk_usage(context.workspace.state).free
            if free < needed:
                text = f"needs {bytes_text(needed)} of disk, {bytes_text(free)} are free"
                raise LaunchError(text)
        indices = [recorder.facts[uuid].index for uuid in start.uuids]
        record = prepare_attempt(context, start, Grant(executor, indices, locks.paths, share))
        self.spawn(record, executor, locks.descriptors)
        for problem in locks.problems:
            context.note("gpu_lock_unusable", problem, run.run_id, severity="warning")

    def _note_failed_start(self, run: Run, error: Exception) -> None:
        file = self.context.workspace.run_dir(run.run_id) / SPEC_FILE
        if not file.exists():
            give_up(self.context, run, f"{file} or its folder is gone; launch the run again")
        elif isinstance(error, UnusableSpecError):
            give_up(self.context, run, f"cannot start: {error}")
        elif run.waiting_for != (text := f"cannot start: {error}; trying again"):
            repository.set_waiting_for(self.context.connection, run.run_id, text)
