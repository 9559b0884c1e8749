"""Waits of recovering runs: until their back-off is over and every gate is open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gputui.agent.context import AgentContext
from gputui.agent.error_barrier import ErrorBarrier
from gputui.agent.lifecycle.active_run import ActiveRuns, Waiting
from gputui.agent.lifecycle.admission import give_up
from gputui.agent.lifecycle.preconditions import POLL_SECONDS, Preconditions
from gputui.runs import repository
from gputui.runs.repository import transaction
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run


@dataclass(slots=True)
class RecoveryWaits:
    """The waits of all runs. ``is_understood`` fails a run
    whose row cannot be understood."""

    context: AgentContext
    runs: ActiveRuns
    gates: Preconditions
    guard: ErrorBarrier
    is_understood: Callable[[Run], bool]

    def next_due(self) -> float | None:
        """Monotonic time at which the first wait ends, or None."""
        return min((phase.due_at for _, phase in self.runs.waiting() if phase.due_at is not None), default=None)

    def turn(self) -> bool:
        """End the waits that are over; whether one was. A wait is counted by the monotonic clock from the moment it is
        first seen, so that a wall clock that is set back does not prolong it."""
        is_one_over = False
        recovering: dict[str, float | None] = dict(
            self.context.connection.execute(
                "SELECT run_id, not_before FROM runs WHERE state = ?", (RunState.RECOVERING,)
            ).fetchall()
        )
        for run, phase in self.runs.waiting():
            if run.run_id not in recovering:
                phase.due_at = None
        now = self.context.monotonic()
        for run_id, not_before in recovering.items():
            waiting = self.runs.waiting_of(run_id)
            left = max(0.0, (not_before or 0.0) - self.context.now())
            if waiting.due_at is None:
                waiting.due_at = now + left
            if min(waiting.due_at, now + left) > now:
                continue
            # Whatever keeps it now is looked at again then.
            waiting.due_at = now + POLL_SECONDS
            if not self.guard.is_resting(run_id):
                with self.guard.around(run_id):
                    is_one_over |= self._end_wait(run_id, waiting)
        return is_one_over

    def _end_wait(self, run_id: str, waiting: Waiting) -> bool:
        """Queue a run whose time is over, where nothing else keeps it; whether nothing does."""
        run = get_run(self.context.connection, run_id)
        if run is None or not self.is_understood(run):
            return False
        if self._is_gated(run, waiting):
            return False
        with transaction(self.context.connection):
            repository.move(
                self.context.connection, run, RunState.QUEUED, cause="the wait is over", now=self.context.now()
            )
        return True

    def _is_gated(self, run: Run, waiting: Waiting) -> bool:
        """Whether a run whose wait is over still has to wait for something; it fails where that is in vain."""
        closed = self.gates.look(run, waiting)
        if closed is None:
            return False
        if closed.is_final:
            give_up(self.context, run, closed.why)
        elif run.waiting_for != closed.why:
            repository.set_waiting_for(self.context.connection, run.run_id, closed.why)
        return True
