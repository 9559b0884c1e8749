"""Release of GPUs after an attempt: their memory must be free again, and no process of the run left."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.active_run import ActiveRun, ActiveRuns, Releasing
from gputui.runs import repository
from gputui.runs.gpu_locks import GpuHeldError, GpuLocks
from gputui.runs.identity import ProcessIdentity, is_being_killed
from gputui.runs.processes import processes_of
from gputui.runs.repository import transaction
from gputui.store.events import add_event
from gputui.store.runs import get_run

# A GPU is free when its used memory is at most this much above that before the attempt, or after the deadline.
RELEASED_WITHIN_BYTES = 512 << 20
DEADLINE_SECONDS = 15.0
LOOK_SECONDS = 0.1
HELD_LOOK_SECONDS = 1.0


@dataclass(slots=True)
class GpuRelease:
    """The GPUs of ended attempts. A run that is over returns its leases once the GPUs are free; a recovering run keeps
    them."""

    context: AgentContext
    runs: ActiveRuns
    locks: GpuLocks

    def begin(self, run_id: str, attempt: int | None, baseline_bytes: Mapping[str, int | None]) -> None:
        """Begin to release GPUs. ``baseline_bytes`` is the used memory of each before the attempt, None if unknown. If
        ``attempt`` is None, processes of all attempts count."""
        if baseline_bytes:
            deadline = self.context.monotonic() + DEADLINE_SECONDS
            self.runs.of(run_id).releasing.append(Releasing(attempt, baseline_bytes, self.context.now(), deadline))

    def uuids(self) -> set[str]:
        """The GPUs that are being released."""
        return {uuid for _, entry in self.runs.releasing() for uuid in entry.baseline_bytes}

    def held(self) -> set[str]:
        """Those of them that unkillable processes hold."""
        return {uuid for _, entry in self.runs.releasing() if entry.is_held for uuid in entry.baseline_bytes}

    def next_look_seconds(self) -> float | None:
        """Seconds until the next check, None without GPUs. A held GPU may stay so for days and is checked less
        often."""
        entries = [entry for _, entry in self.runs.releasing()]
        if not entries:
            return None
        return HELD_LOOK_SECONDS if all(entry.is_held for entry in entries) else LOOK_SECONDS

    def turn(self) -> bool:
        """Release the GPUs that are free; True if there was one. Raises sqlite3.Error."""
        context, done = self.context, False
        for active, entry in self.runs.releasing():
            late = context.monotonic() > entry.deadline
            if not late and not self._memory_is_back(active.run_id, entry):
                continue
            run_id = active.run_id
            processes = processes_of(context.workspace.run_dir(run_id), entry.attempt)
            if processes:
                if free := self._without([process.identity for process in processes], entry):
                    self._release_some(run_id, entry, free)
                    done = True
                if not entry.baseline_bytes:
                    active.releasing.remove(entry)
                    continue
                entry.deadline = context.monotonic() + DEADLINE_SECONDS
                entry.ended_at = context.now()
                entry.is_held = True
                self._lock(entry)
                continue
            run = get_run(context.connection, run_id)
            if run is None or run.state.is_over:
                self._end_leases(active, entry)
            if entry.locks is not None:
                entry.locks.close()
            if entry.is_held and run is not None:
                whose = "the run" if entry.attempt is None else f"attempt {entry.attempt}"
                text = f"the last process of {whose} ended; {', '.join(sorted(entry.baseline_bytes))} can be used again"
                add_event(context.connection, "gpus_released", text, now=context.now(), run_id=run_id)
            active.releasing.remove(entry)
            done = True
        return done

    def _end_leases(self, active: ActiveRun, entry: Releasing) -> None:
        """Return the leases of a run that is over, except for GPUs that another attempt still holds."""
        if len(active.releasing) == 1:
            repository.release_leases(self.context.connection, active.run_id)
            return
        others = {uuid for other in active.releasing if other is not entry for uuid in other.baseline_bytes}
        with transaction(self.context.connection) as connection:
            for uuid in entry.baseline_bytes.keys() - others:
                repository.end_lease(connection, active.run_id, uuid)

    def _without(self, processes: Sequence[ProcessIdentity], entry: Releasing) -> frozenset[str]:
        """The GPUs that the remaining processes cannot hold: the memory is free, the driver does not list them there,
        and each has a pending SIGKILL, so that it never runs again."""
        recorder = self.context.recorder
        if recorder.fast_at <= entry.ended_at or not all(is_being_killed(process) for process in processes):
            return frozenset()
        pids = {process.pid for process in processes}
        return frozenset(
            uuid
            for uuid, baseline in entry.baseline_bytes.items()
            if baseline is not None
            and (sample := recorder.fast.get(uuid)) is not None
            and sample.state == "ok"
            and sample.memory_used_bytes is not None
            and sample.memory_used_bytes <= baseline + RELEASED_WITHIN_BYTES
            and (listed := recorder.processes.get(uuid)) is not None
            and not any(process.pid in pids for process in listed)
        )

    def _release_some(self, run_id: str, entry: Releasing, free: frozenset[str]) -> None:
        """Release the GPUs that the remaining processes do not hold."""
        connection, now = self.context.connection, self.context.now()
        run = get_run(connection, run_id)
        with transaction(connection):
            for uuid in free if run is None or run.state.is_over else ():
                repository.end_lease(connection, run_id, uuid)
            if run is not None:
                held_gpus = ", ".join(sorted(entry.baseline_bytes.keys() - free)) or "no GPU"
                text = f"{', '.join(sorted(free))} can be used again; a process that cannot be killed holds {held_gpus}"
                add_event(connection, "gpus_released", text, now=now, run_id=run_id)
        entry.baseline_bytes = {uuid: baseline for uuid, baseline in entry.baseline_bytes.items() if uuid not in free}
        if entry.locks is not None:
            entry.locks.close()
            entry.locks = None

    def _lock(self, entry: Releasing) -> None:
        """Lock the GPUs against other homes and users, as the ended executor did."""
        if entry.locks is None:
            # Another home may have been faster; the next turn tries again.
            with contextlib.suppress(GpuHeldError):
                entry.locks = self.locks.take(list(entry.baseline_bytes))

    def _memory_is_back(self, run_id: str, entry: Releasing) -> bool:
        # A sample from the future was taken before the clock was set back.
        if not entry.ended_at < self.context.recorder.fast_at <= self.context.now():
            return False
        leases = repository.leases(self.context.connection)
        for uuid, baseline in entry.baseline_bytes.items():
            # On a shared GPU the memory may be another run's; only the end of this run's processes counts.
            is_shared = uuid in leases and bool(set(leases[uuid].run_ids) - {run_id})
            sample = self.context.recorder.fast.get(uuid)
            if is_shared or sample is None or sample.memory_used_bytes is None or baseline is None:
                continue
            if sample.memory_used_bytes > baseline + RELEASED_WITHIN_BYTES:
                return False
        return True
