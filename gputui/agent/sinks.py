"""The sinks of all runs: each has a process until its run is over and fully exported.

The state is outside the agent's memory: the lock of a sink says who writes it, its file in the
run's folder how far it is, and the events of the run what was reported.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

from gputui.agent.children import Child
from gputui.agent.context import AgentContext
from gputui.core.units import duration
from gputui.reports.export.formats import Format, is_format
from gputui.reports.export.memory import MemoryPlace
from gputui.reports.export.sink_factory import absolute_target, memory_key_of
from gputui.runs.command import sink_target
from gputui.runs.spec import SpecError
from gputui.runs.submission import SPEC_FILE, read_spec
from gputui.store.events import SINK_KINDS, EventKind, Severity, last_kind
from gputui.store.metrics.exported import is_exported
from gputui.store.run_states import RunState

log = logging.getLogger(__name__)

RETRY_SECONDS = (2.0, 5.0, 15.0, 60.0, 300.0)
"""Delays before a restart, by the number of consecutive failures."""

PATIENCE_SECONDS = 900.0
"""How long a sink may write nothing after the run's end before it is given up."""

RECENT_SECONDS = 7 * 86400.0
"""A new agent completes the sinks of runs that ended within this time."""


@dataclass(slots=True)
class LiveSink:
    """One sink of one run.

    ``reported`` is the newest event if it reports a problem, with its time (UTC unix seconds);
    ``problem`` is the last one that this agent met. ``deadline`` (monotonic), when the sink is
    given up, is None until the run is over. ``written_at`` is the last known write, in UTC unix
    seconds.
    """

    context: AgentContext
    run_id: str
    name: Format
    place: MemoryPlace
    child: Child
    reported: tuple[str, float] | None = None
    problem: str = ""
    deadline: float | None = None
    written_at: float = 0.0

    def recall(self) -> None:
        """Restore a problem that a former agent reported, so that it is not reported twice and its
        end is reported."""
        last = last_kind(self.context.connection, self.run_id, SINK_KINDS, self.name)
        self.reported = None if last is None or last[0] == "sink_recovered" else last

    def is_complete(self) -> bool:
        """Whether the run is over and fully exported."""
        remembered = self.place.read()
        if remembered is None or remembered.ended_at is None:
            return False
        return is_exported(self.context.connection, self.run_id, remembered.progress)

    def turn(self) -> bool:
        """Start, follow or restart the process. Return whether the sink is still needed.

        Raises sqlite3.Error if something could not be recorded; the next turn repeats it.
        """
        connection, now = self.context.connection, self.context.monotonic()
        row = connection.execute("SELECT state FROM runs WHERE run_id = ?", (self.run_id,)).fetchone()
        if row is None:
            # The run was removed, at which its process ends.
            return self.child.is_running and self.child.turn(now) is None
        if not RunState(row[0]).is_over:
            self.deadline = None
        elif self.deadline is None:
            self.deadline = now + PATIENCE_SECONDS
        if self.reported is not None or self.deadline is not None:
            self._note_progress(now)
        problem = self.child.turn(now)
        if self.deadline is not None and not self.child.is_running and self.is_complete():
            return False
        if problem is not None:
            self._note_failure(problem, now)
        if self.deadline is None or now <= self.deadline:
            return True
        if self.reported is None or self.reported[0] != "sink_incomplete":
            why = self.problem or "it gets nothing written"
            text = f"is not complete: {why}; given up until the next agent, or gputui export {self.run_id}"
            self._report("sink_incomplete", text, "error")
        self.child.kill()
        return False

    def _note_progress(self, now: float) -> None:
        """Extend the deadline of a sink that has written something, and report the end of its
        problem."""
        remembered = self.place.read()
        since = 0.0 if self.reported is None else self.reported[1]
        if remembered is None or remembered.at <= max(self.written_at, since):
            return
        if self.reported is not None:
            self._report("sink_recovered", "is written again; nothing is missing", "info")
            self.reported = None
        self.written_at, self.child.failures = remembered.at, 0
        if self.deadline is not None:
            self.deadline = now + PATIENCE_SECONDS

    def _note_failure(self, problem: str, now: float) -> None:
        self.problem = problem
        if self.reported is None:
            self._report("sink_failed", f"{problem}; the run continues; retrying", "warning")
        self.reported = (self.reported[0] if self.reported else "sink_failed", self.context.now())
        seconds = duration(self.child.next_start - now)
        log.warning("%s: sink %s: %s; again in %s", self.run_id, self.name, problem, seconds)

    def _report(self, kind: EventKind, text: str, severity: Severity) -> None:
        self.context.note(kind, f"sink {self.name}: {text}", self.run_id, key=self.name, severity=severity)


@dataclass(slots=True)
class Sinks:
    """The sinks of one state directory, by run and format."""

    context: AgentContext
    sinks: dict[tuple[str, str], LiveSink] = field(default_factory=dict)
    newest_transition: int = 0

    def turn(self) -> None:
        """Run each sink's turn; called once a second. Raises sqlite3.Error after the last one."""
        for run_id, names in self._changed_runs():
            self._add_sinks(run_id, names)
        failed: sqlite3.Error | None = None
        for key, sink in list(self.sinks.items()):
            try:
                if not sink.turn():
                    sink.child.release()
                    del self.sinks[key]
            except sqlite3.Error as error:
                failed = error
        if failed is not None:
            raise failed

    def is_busy(self) -> bool:
        """Whether a run that is over is not fully exported."""
        return any(sink.deadline is not None for sink in self.sinks.values())

    def close(self) -> None:
        """Release the processes; they continue, and the next agent adopts them."""
        for sink in self.sinks.values():
            sink.child.release()
        self.sinks.clear()

    def _changed_runs(self) -> list[tuple[str, list[str]]]:
        """The runs that changed their state since the last call, at first all that are active or
        ended recently, with the names of their sinks."""
        connection, recent = self.context.connection, self.context.now() - RECENT_SECONDS
        (newest,) = connection.execute("SELECT coalesce(max(transition_id), 0) FROM transitions").fetchone()
        rows = connection.execute(
            "SELECT DISTINCT run_id, spec ->> '$.sinks' FROM transitions JOIN runs USING (run_id) "
            "WHERE transition_id > ? AND (ended_at IS NULL OR ended_at > ?) AND attempt > 0 "
            "AND spec ->> '$.sinks' != '{}'",
            (self.newest_transition, recent),
        ).fetchall()
        self.newest_transition = newest
        return [(run_id, list(json.loads(sinks))) for run_id, sinks in rows]

    def _add_sinks(self, run_id: str, names: list[str]) -> None:
        """Add the incomplete sinks of a run."""
        if all((run_id, name) in self.sinks for name in names):
            return
        run_dir = self.context.workspace.run_dir(run_id)
        try:
            # The private specification: a target in the database may be redacted.
            spec = read_spec(run_dir / SPEC_FILE)
        except SpecError as error:
            log.warning("%s: its sinks are not written: %s", run_id, error)
            return
        for name in names:
            if (run_id, name) not in self.sinks and name in spec.sinks and is_format(name):
                target = sink_target(spec.sinks[name], spec.params, run_id=run_id, run_dir=str(run_dir))
                key = memory_key_of(name, run_id, absolute_target(name, target, Path("/")))
                sink = self._sink(run_id, name, MemoryPlace.of(run_dir, name, key))
                if not sink.is_complete():
                    sink.recall()
                    self.sinks[run_id, name] = sink

    def _sink(self, run_id: str, name: Format, place: MemoryPlace) -> LiveSink:
        subject = ("--state", str(self.context.workspace.state), "--run", run_id, "--to", name)
        child = Child("gputui.reports.export", subject, place.lock, place.log, RETRY_SECONDS)
        return LiveSink(self.context, run_id, name, place, child)
