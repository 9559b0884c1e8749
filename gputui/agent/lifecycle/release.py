"""Between an attempt and the next on the same GPUs: their memory must be back, and no process of the run left."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.active_run import ActiveRun, ActiveRuns, Releasing
from gputui.runs import repository
from gputui.runs.attempt_processes import processes_of
from gputui.runs.gpu_locks import GpuHeldError, GpuLocks
from gputui.runs.identity import ProcessIdentity, is_being_killed
from gputui.runs.repository import transaction
from gputui.store.events import add_event
from gputui.store.runs import get_run

# A GPU counts as released when its used memory is back to what it was before the attempt, within this margin
# (other processes come and go), or after the deadline.
RELEASED_WITHIN_BYTES = 512 << 20
DEADLINE_SECONDS = 15.0
LOOK_SECONDS = 0.1
HELD_LOOK_SECONDS = 1.0


@dataclass(slots=True)
class GpuRelease:
    """The GPUs of attempts that have ended. A run that is over gives its leases back when they are drained; one that
    recovers keeps them."""

    context: AgentContext
    runs: ActiveRuns
    locks: GpuLocks

    def begin(self, run_id: str, attempt: int | None, baseline_bytes: Mapping[str, int | None]) -> None:
        """``baseline_bytes``: the used memory of each GPU before the attempt, None if it is not known. Without
        ``attempt`` all processes of the run count."""
        if baseline_bytes:
            deadline = self.context.monotonic() + DEADLINE_SECONDS
            self.runs.of(run_id).releasing.append(Releasing(attempt, baseline_bytes, self.context.now(), deadline))

    def uuids(self) -> set[str]:
        """The GPUs on which nothing may start yet."""
        return {uuid for _, entry in self.runs.releasing() for uuid in entry.baseline_bytes}

    def held(self) -> set[str]:
        """Those of them on which processes live that nothing could end."""
        return {uuid for _, entry in self.runs.releasing() if entry.is_held for uuid in entry.baseline_bytes}

    def next_look_seconds(self) -> float | None:
        """How soon to look again, None if there is nothing to look at. What holds a GPU may live for days."""
        entries = [entry for _, entry in self.runs.releasing()]
        if not entries:
            return None
        return HELD_LOOK_SECONDS if all(entry.is_held for entry in entries) else LOOK_SECONDS

    def turn(self) -> bool:
        """Let go of what is drained; True when something was. Raises sqlite3.Error."""
        context, done = self.context, False
        for active, entry in self.runs.releasing():
            late = context.monotonic() > entry.deadline
            if not late and not self._memory_is_back(active.run_id, entry):
                continue
            run_id = active.run_id
            left = processes_of(context.workspace.run_dir(run_id), entry.attempt)
            if left:
                # Whoever still holds a GPU keeps it, however long that takes.
                if free := self._without([one.identity for one in left], entry):
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
        """Give back the leases of a run that is over, but for those on GPUs that another attempt still holds."""
        if len(active.releasing) == 1:
            repository.release_leases(self.context.connection, active.run_id)
            return
        others = {uuid for other in active.releasing if other is not entry for uuid in other.baseline_bytes}
        with transaction(self.context.connection) as connection:
            for uuid in entry.baseline_bytes.keys() - others:
                repository.end_lease(connection, active.run_id, uuid)

    def _without(self, left: Sequence[ProcessIdentity], entry: Releasing) -> frozenset[str]:
        """The GPUs on which none of the processes that are left can be: their memory is back, the driver lists none of
        them there, and each has got a SIGKILL, so that it will never run again. Another user's may."""
        recorder = self.context.recorder
        if recorder.fast_at <= entry.ended_at or not all(is_being_killed(one) for one in left):
            return frozenset()
        pids = {one.pid for one in left}
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
        """Give back what the processes that are left do not hold."""
        connection, now = self.context.connection, self.context.now()
        run = get_run(connection, run_id)
        with transaction(connection):
            for uuid in free if run is None or run.state.is_over else ():
                repository.end_lease(connection, run_id, uuid)
            if run is not None:
                held = ", ".join(sorted(entry.baseline_bytes.keys() - free)) or "no GPU"
                text = f"{', '.join(sorted(free))} can be used again; a process that cannot be killed holds {held}"
                add_event(connection, "gpus_released", text, now=now, run_id=run_id)
        entry.baseline_bytes = {uuid: before for uuid, before in entry.baseline_bytes.items() if uuid not in free}
        if entry.locks is not None:
            entry.locks.close()
            entry.locks = None

    def _lock(self, entry: Releasing) -> None:
        """Keep other homes and users from the GPUs too: the executor that did so has ended."""
        if entry.locks is None:
            # Where another was faster, it has the GPU; what is held here is tried again.
            with contextlib.suppress(GpuHeldError):
                entry.locks = self.locks.take(list(entry.baseline_bytes))

    def _memory_is_back(self, run_id: str, entry: Releasing) -> bool:
        # What is dated in the future was read before the clock was set back.
        if not entry.ended_at < self.context.recorder.fast_at <= self.context.now():
            return False
        leases = repository.leases(self.context.connection)
        for uuid, baseline in entry.baseline_bytes.items():
            # With others on the GPU nobody knows whose memory it is; the end of the run's processes is waited for.
            is_shared = uuid in leases and bool(set(leases[uuid].run_ids) - {run_id})
            sample = self.context.recorder.fast.get(uuid)
            if is_shared or sample is None or sample.memory_used_bytes is None or baseline is None:
                continue
            if sample.memory_used_bytes > baseline + RELEASED_WITHIN_BYTES:
                return False
        return True
