"""Whether the checkpoint that a queued run begins from is still the one that was chosen: between the choice and the
start minutes or days may pass, in which another run may have written a file of the same name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.active_run import ActiveRuns, ResumeCheck, Waiting
from gputui.agent.lifecycle.checkpoint_survey import search_of, write
from gputui.recovery.checkpoint_search import CheckpointChoice, CheckpointSearch, choose, surveyed
from gputui.recovery.checkpoints import measured
from gputui.runs import repository
from gputui.runs.repository import transaction
from gputui.store.checkpoints import CheckpointRow
from gputui.store.events import add_event
from gputui.store.runs import Run

# Where another is to be chosen, checkpoints are read whole.
DEADLINE_SECONDS = 900.0
# What was looked at so lately is not looked at again; what could not be, not before.
CHECKED_SECONDS = 10.0


@dataclass(slots=True)
class ResumeChecks:
    """The checks of all queued runs, each in a job. ``give_up`` ends a run that cannot start, with the reason."""

    context: AgentContext
    runs: ActiveRuns
    give_up: Callable[[Run, str], None]

    def is_one_over(self) -> bool:
        """Whether a check has ended since this was last asked."""
        checks = [phase.resume_check for _, phase in self.runs.waiting()]
        over = [check for check in checks if check is not None and not check.is_told and check.job.is_over]
        for check in over:
            check.is_told = True
        return bool(over)

    def may_start(self, run: Run) -> bool:
        """Whether the run may start now. Where its checkpoint is another by now, the next best takes its place; the run
        ends where there is none. Raises sqlite3.Error."""
        path = run.resume_from
        if path is None:
            return True
        waiting = self.runs.waiting_of(run.run_id)
        check = waiting.resume_check
        found, at = waiting.checked or (None, float("-inf"))
        is_late = self.context.monotonic() - at >= CHECKED_SECONDS
        if path == found and not is_late:
            waiting.checked = None
            return True
        if check is None or check.path != path:
            return self._begin(run, path, waiting) if is_late else False
        if not check.job.is_over:
            return False
        waiting.resume_check = None
        try:
            choice = check.job.result()
        except OSError as error:
            waiting.checked = (None, self.context.monotonic())
            why = f"waits until {Path(path).name} can be read: {error.strerror or error}"
            repository.set_waiting_for(self.context.connection, run.run_id, why)
            return False
        if choice is None:
            return True
        self._choose_again(run, check, choice, waiting)
        return False

    def _begin(self, run: Run, path: str, waiting: Waiting) -> bool:
        context = self.context
        search = search_of(context.connection, context.workspace, run, context.now())
        row = None if search is None else next((row for row in search.rows if row.path == path), None)
        if search is None or row is None:
            # Chosen before there was a ledger: there is nothing to compare it with.
            return True
        job = context.jobs.start(f"looking at {path}", partial(again, search, row), deadline_seconds=DEADLINE_SECONDS)
        waiting.resume_check = ResumeCheck(path, search, job)
        return False

    def _choose_again(self, run: Run, check: ResumeCheck, choice: CheckpointChoice, waiting: Waiting) -> None:
        name = Path(check.path).name
        changed = f"{name} was removed, or written again by another, after it had been chosen"
        if not choice.usable:
            with transaction(self.context.connection) as connection:
                write(connection, check.search, choice.rows, self.context.now())
            hint = "gputui resume --from names another, gputui restart begins the run again"
            self.give_up(run, f"{changed}, and there is no other; {hint}")
            return
        following = choice.usable[0].path
        with transaction(self.context.connection) as connection:
            write(connection, check.search, choice.rows, self.context.now())
            repository.set_next_attempt(
                connection, run.run_id, params=run.params, resume_from=str(following), not_before=run.not_before
            )
            text = f"{changed}; going on from {following.name}"
            add_event(
                connection,
                "checkpoint_replaced",
                text,
                now=self.context.now(),
                key=check.path,
                severity="warning",
                run_id=run.run_id,
            )
        waiting.checked = (str(following), self.context.monotonic())


def again(search: CheckpointSearch, row: CheckpointRow) -> CheckpointChoice | None:
    """None where a checkpoint is as it was when it was chosen; else what is to be chosen in its place. Raises what
    `surveyed` raises."""
    now = measured(Path(row.path))
    if now is not None and (now.modified_ns, now.size_bytes) == (row.modified_ns, row.size_bytes):
        return None
    return choose(surveyed(search), search.attempts, 1)
