"""The processes of studies: the store says which studies need one, a study's lock says who serves
it."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field

from gputui.agent.children import Child
from gputui.agent.context import AgentContext
from gputui.core.config import PRIVATE_DIR_MODE
from gputui.studies.rows import LOCK_FILE, LOG_FILE

log = logging.getLogger(__name__)

AGAIN_SECONDS = (1.0, 2.0, 5.0, 15.0, 60.0, 300.0)
"""Delays before a restart, by the number of consecutive failures."""
_NEEDED = """
SELECT study_id, state FROM studies AS s WHERE state IN ('running', 'stopping') OR state = 'paused' AND (
    EXISTS (SELECT 1 FROM trial_requests AS r WHERE r.study_id = s.study_id)
    OR EXISTS (SELECT 1 FROM trials AS t WHERE t.study_id = s.study_id AND t.origin != 'outside'
        AND t.state IN ('launching', 'running', 'pruning', 'stopping')))
"""


@dataclass(slots=True)
class Studies:
    """The processes of the studies of one state directory. ``reported`` are the problems that
    became events, ``states`` those of the studies at the last turn."""

    context: AgentContext
    served: dict[str, Child] = field(default_factory=dict)
    reported: dict[str, str] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Failures are counted anew.
        self.context.connection.execute("UPDATE studies SET problem = NULL WHERE problem IS NOT NULL")

    def turn(self) -> None:
        """Start and restart what is due; called once a second. Raises sqlite3.Error."""
        needed: dict[str, str] = dict(self.context.connection.execute(_NEEDED).fetchall())
        for study_id, state in needed.items():
            if study_id not in self.served:
                self.served[study_id] = self._child(study_id)
            elif self.states.get(study_id) != state:
                self.served[study_id].next_start = 0.0  # a person does not wait for a delay
        self.states = needed
        for study_id, child in list(self.served.items()):
            if study_id not in needed and not child.is_running:
                del self.served[study_id]
                child.failures = 0
                problem = None
            else:
                problem = child.turn(self.context.monotonic())
            if problem is not None:
                self._note_failure(study_id, child, problem)
            elif not child.failures and self.reported.pop(study_id, None) is not None:
                self._set_problem(study_id, None)

    def is_busy(self) -> bool:
        return bool(self.served)

    def close(self) -> None:
        """Release the processes; they continue, and the next agent adopts them."""
        for child in self.served.values():
            child.release()
        self.served.clear()

    def _child(self, study_id: str) -> Child:
        workspace = self.context.workspace
        folder = workspace.studies / study_id
        with suppress(OSError):  # the start says why
            workspace.studies.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
        home = ("--profiles", str(workspace.profiles), "--state", str(workspace.state))
        lock = folder / LOCK_FILE
        log_file = folder / LOG_FILE
        return Child("gputui.studies", (*home, "--study", study_id), lock, log_file, AGAIN_SECONDS)

    def _note_failure(self, study_id: str, child: Child, problem: str) -> None:
        seconds = child.next_start - self.context.monotonic()
        log.warning("%s: its process: %s; again in %g s", study_id, problem, seconds)
        if child.failures == 1 or self.reported.get(study_id) != problem:
            self.reported[study_id] = problem
            text = f"study process: {problem}; its trials continue; it will be restarted"
            self.context.note("study_process_failed", text, severity="warning", subject=study_id)
        if child.failures > 1:
            often = f"its process failed {child.failures} times in a row"
            self._set_problem(study_id, f"{often} (log: {child.log}): {problem}")

    def _set_problem(self, study_id: str, problem: str | None) -> None:
        self.context.connection.execute("UPDATE studies SET problem = ? WHERE study_id = ?", (problem, study_id))
