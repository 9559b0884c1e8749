"""Processes that work for the agent and outlive it: one writes the sinks of all runs, one serves each study."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gputui.agent.context import AgentContext
from gputui.core.config import PRIVATE_DIR_MODE, PRIVATE_FILE_MODE
from gputui.core.units import duration
from gputui.machine.child import signal_name
from gputui.reports.export import exporter
from gputui.runs.identity import Holder, holder, is_alive
from gputui.store.metrics.exported import runs_with_sinks
from gputui.studies import rows as study_rows

log = logging.getLogger(__name__)

_REPORT_BYTES = 4096  # what a pipe takes at once, so that a line is never read in parts
STEADY_SECONDS = 600.0
"""A process that lives this long has worked; its end starts a new count of failures."""
# Delays before a restart, by the number of consecutive failures.
SINK_DELAYS_SECONDS = (2.0, 5.0, 15.0, 60.0, 300.0)
STUDY_DELAYS_SECONDS = (1.0, 2.0, 5.0, 15.0, 60.0, 300.0)
_MAX_FAILURES = 3
"""An agent that nobody needs stays for so many failures of the process."""
_NEEDED = """
SELECT study_id, state FROM studies AS s WHERE state IN ('running', 'stopping') OR state = 'paused' AND (
    EXISTS (SELECT 1 FROM trial_requests AS r WHERE r.study_id = s.study_id)
    OR EXISTS (SELECT 1 FROM trials AS t WHERE t.study_id = s.study_id AND t.origin != 'outside'
        AND t.state IN ('launching', 'running', 'pruning', 'stopping')))
"""


@dataclass(slots=True)
class Child:
    """The process of one task: a module of gputui that ends when the task is done.

    Attributes:
        module: what ``python -m`` runs.
        arguments: the words after the module.
        lock: the file that the process locks while it lives.
        log: the file to which the process writes.
        delays: seconds before a restart, by the number of consecutive failures.
        failures: how many ended badly in a row.
        began_at: the last start or adoption (monotonic).
        next_start: the earliest next start (monotonic).
        adopted: the holder of the lock if another agent started it.
        process: the process that this agent started.
    """

    module: str
    arguments: Sequence[str]
    lock: Path
    log: Path
    delays: Sequence[float]
    failures: int = 0
    began_at: float = 0.0
    next_start: float = 0.0
    adopted: Holder | None = None
    process: subprocess.Popen[bytes] | None = None
    _report: int | None = None

    @property
    def is_running(self) -> bool:
        """True if it was started or adopted, and its end was not noticed yet."""
        return self.process is not None or self.adopted is not None

    def poll(self, now: float) -> str | None:
        """Follow the process, or start one that is due.

        Args:
            now: monotonic seconds.

        Returns:
            The problem of a process that has just failed, else None.
        """
        if self.is_running:
            if now - self.began_at >= STEADY_SECONDS:
                self.failures = 0
            if self._is_alive():
                return None
            problem = self._take_outcome()
            if problem is None:
                self.failures = 0
        elif now >= self.next_start:
            self.began_at = now
            try:
                self._begin()
                return None
            except OSError as error:
                problem = f"cannot be started: {error.strerror or error}"
        else:
            return None
        self.next_start = now + self.delays[min(self.failures, len(self.delays) - 1)]
        self.failures += problem is not None
        return problem

    def release(self) -> None:
        """Close the handles of a process that continues after this agent."""
        if self._report is not None:
            os.close(self._report)
            self._report = None
        if self.process is not None and self.process.poll() is None:
            # Otherwise Popen warns about a child that is still running.
            self.process.returncode = 0
        self.process = self.adopted = None

    def _is_alive(self) -> bool:
        if self.process is not None:
            return self.process.poll() is None
        return self.adopted is not None and is_alive(self.adopted.identity)

    def _take_outcome(self) -> str | None:
        """Release the process that has ended, and return its problem; None if it succeeded, or was not
        started by this agent."""
        code = 0
        if self.process is not None:
            code = self.process.returncode
        report = ""
        if self._report is not None:
            with suppress(OSError):
                report = os.read(self._report, _REPORT_BYTES).decode("utf-8", "replace").strip()
        self.release()
        if code == 0:
            return None
        if report:
            return report
        if code < 0:
            return f"its process was ended by {signal_name(-code)}"
        return f"its process ended with code {code}"

    def _begin(self) -> None:
        """Adopt the process that holds the lock, or start one in a new session, so that it outlives this
        agent.

        It reports a failure to the descriptor in ``--tell``; its output goes to the log. Raises OSError.
        """
        running = holder(self.lock)
        if running is not None and is_alive(running.identity):
            self.adopted = running
            return
        self.log.parent.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
        report, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            with os.fdopen(os.open(self.log, flags, PRIVATE_FILE_MODE), "wb") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", self.module, *self.arguments, "--tell", str(write_end)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    cwd="/",
                    pass_fds=(write_end,),
                )
            self._report = report
        except OSError:
            os.close(report)
            raise
        finally:
            os.close(write_end)


@dataclass(slots=True)
class Sinks:
    """The exporter of one home, which is started when a run with sinks changes its state.

    Attributes:
        is_needed: something may be left that the process which was started last does not know of.
        newest_transition: the newest change of a run that was looked at.
        reported: the problem that became an event last.
    """

    context: AgentContext
    child: Child = field(init=False)
    is_needed: bool = False
    newest_transition: int = 0
    reported: str = ""

    def __post_init__(self) -> None:
        state = self.context.workspace.state
        arguments = ("--state", str(state))
        lock = state / exporter.LOCK_FILE
        log_file = state / exporter.LOG_FILE
        self.child = Child("gputui.reports.export.exporter", arguments, lock, log_file, SINK_DELAYS_SECONDS)

    def poll(self) -> None:
        """Start or restart the process if it is needed; called once a second. Raises
        sqlite3.Error."""
        context = self.context
        child = self.child
        recent = context.now() - exporter.RECENT_SECONDS
        self.newest_transition, changed = runs_with_sinks(context.connection, self.newest_transition, recent)
        self.is_needed |= bool(changed)
        was_running = child.is_running
        was_adopted = child.adopted is not None
        if not (was_running or self.is_needed):
            return
        problem = child.poll(context.monotonic())
        if child.is_running and not was_running:
            # It finds all that there is until now.
            self.is_needed = False
        elif problem is not None or (was_adopted and not child.is_running):
            # How an adopted process ended is unknown.
            self.is_needed = True
        if problem is not None:
            seconds = duration(child.next_start - context.monotonic())
            log.warning("exporter: %s; again in %s", problem, seconds)
            if problem != self.reported:
                self.reported = problem
                text = f"exporter: {problem}; runs continue; it will be restarted"
                context.note("exporter_failed", text, severity="warning")

    def is_busy(self) -> bool:
        """Return whether something may be left to write."""
        is_hopeful = self.child.failures < _MAX_FAILURES
        return self.child.is_running or (self.is_needed and is_hopeful)

    def close(self) -> None:
        """Release the process; it continues, and the next agent adopts it."""
        self.child.release()


@dataclass(slots=True)
class Studies:
    """The processes of the studies of one home. The store says which studies need one, a study's lock
    says who serves it.

    Attributes:
        served: the processes, by study.
        reported: the problems that became events last, by study.
        states: the states of the studies at the last turn.
    """

    context: AgentContext
    served: dict[str, Child] = field(default_factory=dict)
    reported: dict[str, str] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Failures are counted anew.
        self.context.connection.execute("UPDATE studies SET problem = NULL WHERE problem IS NOT NULL")

    def poll(self) -> None:
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
                problem = child.poll(self.context.monotonic())
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
        lock = folder / study_rows.LOCK_FILE
        log_file = folder / study_rows.LOG_FILE
        return Child("gputui.studies", (*home, "--study", study_id), lock, log_file, STUDY_DELAYS_SECONDS)

    def _note_failure(self, study_id: str, child: Child, problem: str) -> None:
        seconds = child.next_start - self.context.monotonic()
        log.warning("%s: its process: %s; again in %g s", study_id, problem, seconds)
        if child.failures == 1 or self.reported.get(study_id) != problem:
            self.reported[study_id] = problem
            text = f"study process: {problem}; its trials continue; it will be restarted"
            self.context.note_about(study_id, "study_process_failed", text)
        if child.failures > 1:
            often = f"its process failed {child.failures} times in a row"
            self._set_problem(study_id, f"{often} (log: {child.log}): {problem}")

    def _set_problem(self, study_id: str, problem: str | None) -> None:
        self.context.connection.execute("UPDATE studies SET problem = ? WHERE study_id = ?", (problem, study_id))
