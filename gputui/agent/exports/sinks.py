"""The sinks of all runs: each has a process until its run is over and fully exported.

The state is outside the agent's memory: the lock of a sink says who writes it, its file in the run's folder how far it
is, and the events of the run what was reported.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from gputui.agent.child_processes import ChildProcess, Ended, adopt, forget_child, start
from gputui.agent.context import AgentContext
from gputui.core.units import duration
from gputui.reports.export.formats import Format, is_format
from gputui.reports.export.memory import MemoryPlace
from gputui.reports.export.sink_factory import absolute_target, memory_key_of
from gputui.runs.command import sink_target
from gputui.runs.spec import RunSpec, SpecError
from gputui.runs.submission import SPEC_FILE, read_spec
from gputui.store.events import SINK_KINDS, EventKind, Severity, add_event, last_kind
from gputui.store.metrics.exported import is_exported
from gputui.store.run_states import RunState

log = logging.getLogger(__name__)

RETRY_SECONDS = (2.0, 5.0, 15.0, 60.0, 300.0)
"""Delays before a restart, by the number of consecutive failures."""

PATIENCE_SECONDS = 900.0
"""How long a sink may write nothing after the run's end before it is given up."""


class SinkTrouble(NamedTuple):
    """The newest event of a sink if it reports a problem: its kind, its time (UTC unix seconds), and the problem if
    this agent met it."""

    kind: str
    at: float
    problem: str = ""


@dataclass(slots=True)
class LiveSink:
    """One sink of one run.

    ``failures`` and ``refusals`` are consecutive; a refusal is a lock held by a process that is invisible from here,
    such as one on another host. ``next_start`` and ``deadline`` are monotonic; the deadline, when the sink is given up,
    is None until the run is over. ``written_at`` is UTC unix seconds. ``ended`` is the outcome of the last process
    until its consequences are recorded.
    """

    context: AgentContext
    run_id: str
    name: Format
    place: MemoryPlace
    trouble: SinkTrouble | None = None
    process: ChildProcess | None = None
    ended: Ended | None = None
    failures: int = 0
    refusals: int = 0
    next_start: float = 0.0
    deadline: float | None = None
    written_at: float = 0.0

    def recall_trouble(self) -> None:
        """Restore a problem that a former agent reported, so that it is not reported twice and its end is reported."""
        last = last_kind(self.context.connection, self.run_id, SINK_KINDS, self.name)
        if last is not None and last[0] != "sink_recovered":
            self.trouble = SinkTrouble(*last)

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
        state = self._run_state()
        if state is not None and not state.is_over:
            self.deadline = None
        elif self.deadline is None:
            self._extend_deadline()
        if self.process is not None:
            self.ended = self.process.ended()
            if self.ended is None:
                return self._follow(self.process)
            self.process = None
            self.refusals = self.refusals + 1 if self.ended.is_elsewhere else 0
        is_needed = state is not None and self._continue(self.ended)
        self.ended = None
        return is_needed

    def close(self) -> None:
        """Release the process, which continues after this agent."""
        if self.process is not None:
            forget_child(self.process)

    def _follow(self, process: ChildProcess) -> bool:
        """Check the progress of the running process."""
        if self.trouble is None and self.deadline is None:
            return True
        written_at = self._newly_written_at(since=0.0 if self.trouble is None else self.trouble.at)
        if written_at is not None:
            self._report_recovery()
            self._note_written(written_at)
            self.failures = 0
        elif self._is_overdue():
            problem = "" if self.trouble is None else self.trouble.problem
            return self._give_up(problem or "it gets nothing written", process)
        return True

    def _continue(self, ended: Ended | None) -> bool:
        """Act on the outcome of the last process, or start a new one."""
        if self.deadline is not None and self.is_complete():
            self._report_recovery()
            return False
        if ended is not None and ended.problem is not None:
            return self._fail(ended.problem)
        if ended is not None and ended.is_elsewhere:
            return self._leave_to_other()
        if self.context.monotonic() >= self.next_start:
            return self._start()
        return True

    def _start(self) -> bool:
        # A process that succeeds at once must not be restarted immediately.
        self.next_start = self.context.monotonic() + RETRY_SECONDS[0]
        self.process = adopt(self.place.lock)
        if self.process is not None:
            return True
        try:
            self.place.make()
            subject = ("--state", str(self.context.workspace.state), "--run", self.run_id, "--to", self.name)
            self.process = start("gputui.reports.export", subject, self.place.log)
        except OSError as error:
            if self._run_state() is not None:
                return self._fail(f"cannot be started: {error.strerror or error}")
        return True

    def _leave_to_other(self) -> bool:
        """An invisible process holds the lock: retry with growing delays, and give up if it writes nothing after the
        run's end."""
        self.next_start = self.context.monotonic() + _retry_seconds(self.refusals)
        if self.deadline is None:
            return True
        written_at = self._newly_written_at()
        if written_at is not None:
            self._note_written(written_at)
        elif self._is_overdue():
            return self._give_up(f"a process elsewhere holds {self.place.lock} and gets nothing written")
        return True

    def _fail(self, problem: str) -> bool:
        if self._is_overdue():
            return self._give_up(problem)
        if self.trouble is None:
            self._report("sink_failed", f"{problem}; the run continues; retrying", "warning")
            self.trouble = SinkTrouble("sink_failed", self.context.now(), problem)
        else:
            self.trouble = self.trouble._replace(at=self.context.now(), problem=problem)
        self.failures += 1
        seconds = _retry_seconds(self.failures)
        self.next_start = self.context.monotonic() + seconds
        log.warning("%s: sink %s: %s; again in %s", self.run_id, self.name, problem, duration(seconds))
        return True

    def _give_up(self, problem: str, process: ChildProcess | None = None) -> bool:
        if self.trouble is None or self.trouble.kind != "sink_incomplete":
            text = f"is not complete: {problem}; given up until the next agent, or gputui export {self.run_id}"
            self._report("sink_incomplete", text, "error")
        if process is not None:
            process.kill()
        return False

    def _run_state(self) -> RunState | None:
        """None if the run was removed."""
        row = self.context.connection.execute("SELECT state FROM runs WHERE run_id = ?", (self.run_id,)).fetchone()
        return None if row is None else RunState(row[0])

    def _newly_written_at(self, since: float = 0.0) -> float | None:
        """The time of the last write if it is later than ``since`` and the last known one."""
        remembered = self.place.read()
        if remembered is None or remembered.at <= max(self.written_at, since):
            return None
        return remembered.at

    def _note_written(self, at: float) -> None:
        """Extend the deadline of a sink that makes progress."""
        self.written_at = at
        if self.deadline is not None:
            self._extend_deadline()

    def _extend_deadline(self) -> None:
        self.deadline = self.context.monotonic() + PATIENCE_SECONDS

    def _is_overdue(self) -> bool:
        return self.deadline is not None and self.context.monotonic() > self.deadline

    def _report_recovery(self) -> None:
        if self.trouble is not None:
            self._report("sink_recovered", "is written again; nothing is missing", "info")
            self.trouble = None

    def _report(self, kind: EventKind, text: str, severity: Severity) -> None:
        add_event(
            self.context.connection,
            kind,
            f"sink {self.name}: {text}",
            now=self.context.now(),
            key=self.name,
            severity=severity,
            run_id=self.run_id,
        )


def _retry_seconds(failures: int) -> float:
    """The delay after one or more consecutive failures."""
    return RETRY_SECONDS[min(failures, len(RETRY_SECONDS)) - 1]


RECENT_SECONDS = 7 * 86400.0
"""A new agent completes the sinks of runs that ended within this time."""


@dataclass(slots=True)
class Sinks:
    """The sinks of one state directory, by run and format."""

    context: AgentContext
    sinks: dict[tuple[str, str], LiveSink] = field(default_factory=dict)
    newest_transition: int = 0

    def begin(self) -> None:
        """Add the sinks of runs that are active or ended recently. Raises sqlite3.Error."""
        connection = self.context.connection
        (self.newest_transition,) = connection.execute(
            "SELECT coalesce(max(transition_id), 0) FROM transitions"
        ).fetchone()
        rows = connection.execute(
            "SELECT run_id FROM runs WHERE (ended_at IS NULL OR ended_at > ?) AND attempt > 0 "
            "AND json_valid(spec) AND json_type(spec, '$.sinks') = 'object' "
            "AND spec ->> '$.sinks' != '{}' ORDER BY sequence",
            (self.context.now() - RECENT_SECONDS,),
        ).fetchall()
        for (run_id,) in rows:
            self._add_run(run_id)

    def turn(self) -> None:
        """Run each sink's turn; called once a second. Raises sqlite3.Error after the last one."""
        for transition_id, run_id in self.context.connection.execute(
            "SELECT transition_id, run_id FROM transitions WHERE transition_id > ? ORDER BY transition_id",
            (self.newest_transition,),
        ).fetchall():
            self._add_run(run_id)
            self.newest_transition = transition_id
        failed: sqlite3.Error | None = None
        for key, sink in list(self.sinks.items()):
            try:
                if not sink.turn():
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
            sink.close()
        self.sinks.clear()

    def _add_run(self, run_id: str) -> None:
        """Add the incomplete sinks of a run that has started."""
        row = self.context.connection.execute(
            "SELECT iif(json_valid(spec), spec ->> '$.sinks', NULL) FROM runs WHERE run_id = ? AND attempt > 0",
            (run_id,),
        ).fetchone()
        names = json.loads(row[0] or "{}") if row is not None else {}
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
            if (run_id, name) not in self.sinks and name in spec.sinks:
                self._add_sink(run_id, name, spec, run_dir)

    def _add_sink(self, run_id: str, name: str, spec: RunSpec, run_dir: Path) -> None:
        if not is_format(name):
            return
        target = sink_target(spec.sinks[name], spec.params, run_id=run_id, run_dir=str(run_dir))
        key = memory_key_of(name, run_id, absolute_target(name, target, Path("/")))
        sink = LiveSink(self.context, run_id, name, MemoryPlace.of(run_dir, name, key))
        if not sink.is_complete():
            sink.recall_trouble()
            self.sinks[run_id, name] = sink
