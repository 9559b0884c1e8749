"""The processes of studies: the store says which studies need one, a study's lock says who serves it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from gputui.agent.child_processes import ChildProcess, adopt, forget_child, start
from gputui.agent.context import AgentContext
from gputui.core.config import PRIVATE_DIR_MODE
from gputui.store.events import add_event
from gputui.studies.rows import LOCK_FILE, LOG_FILE

log = logging.getLogger(__name__)

# Delays before a restart, by the number of consecutive failures.
AGAIN_SECONDS = (1.0, 2.0, 5.0, 15.0, 60.0, 300.0)
STEADY_SECONDS = 600.0
"""A process that lives this long has worked; its end starts a new count of failures."""
_NEEDED = """
SELECT study_id FROM studies AS s WHERE state IN ('running', 'stopping') OR state = 'paused' AND EXISTS (
    SELECT 1 FROM trials AS t WHERE t.study_id = s.study_id
    AND t.state IN ('launching', 'running', 'pruning', 'stopping'))
"""


@dataclass(slots=True)
class _Served:
    """One study. Times are monotonic. ``since`` is when the process was started or adopted, ``failures`` the number of
    consecutive failures, ``reported`` the last problem that became an event."""

    process: ChildProcess | None = None
    since: float = 0.0
    failures: int = 0
    again_at: float = 0.0
    reported: str | None = None


@dataclass(slots=True)
class Studies:
    """The processes of the studies of one state directory."""

    context: AgentContext
    served: dict[str, _Served] = field(default_factory=dict)

    def turn(self) -> None:
        """Start and restart what is due; called once a second. Raises sqlite3.Error."""
        needed = [row[0] for row in self.context.connection.execute(_NEEDED).fetchall()]
        for study_id in needed:
            self._serve(study_id, self.served.setdefault(study_id, _Served()))
        for study_id in [served_id for served_id in self.served if served_id not in needed]:
            process = self.served[study_id].process
            if process is None or process.ended() is not None:
                del self.served[study_id]

    def is_busy(self) -> bool:
        """Whether any study runs."""
        return bool(self.served)

    def close(self) -> None:
        """Release the processes; they continue, and the next agent adopts them."""
        for served in self.served.values():
            if served.process is not None:
                forget_child(served.process)
        self.served.clear()

    def _serve(self, study_id: str, served: _Served) -> None:
        now = self.context.monotonic()
        if served.process is not None:
            ended = served.process.ended()
            if ended is None:
                return
            served.process = None
            if ended.problem is None or now - served.since >= STEADY_SECONDS:
                served.failures, served.reported = 0, None
            if ended.problem is None:
                served.again_at = now + AGAIN_SECONDS[0]
            else:
                self._note_failure(study_id, served, ended.problem)
        if now < served.again_at:
            return
        folder = self.context.workspace.studies / study_id
        served.since = now
        served.process = adopt(folder / LOCK_FILE)
        if served.process is not None:
            return
        home = ("--profiles", str(self.context.workspace.profiles), "--state", str(self.context.workspace.state))
        try:
            folder.mkdir(mode=PRIVATE_DIR_MODE, parents=True, exist_ok=True)
            served.process = start("gputui.studies", (*home, "--study", study_id), folder / LOG_FILE)
        except OSError as error:
            self._note_failure(study_id, served, f"cannot be started: {error.strerror or error}")

    def _note_failure(self, study_id: str, served: _Served, words: str) -> None:
        seconds = AGAIN_SECONDS[min(served.failures, len(AGAIN_SECONDS) - 1)]
        served.again_at = self.context.monotonic() + seconds
        served.failures += 1
        log.warning("%s: its process: %s; again in %g s", study_id, words, seconds)
        if served.reported != words:
            served.reported = words
            text = f"study process: {words}; its trials continue; it will be restarted"
            now = self.context.now()
            add_event(
                self.context.connection, "study_process_failed", text, now=now, severity="warning", subject=study_id
            )
