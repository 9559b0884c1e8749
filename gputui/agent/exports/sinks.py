"""The sinks of runs: that each has its process while its run lives, and until everything is written.

Nothing is believed from memory alone: which sinks a run has says its specification, who writes them their lock, and how
far they are their own file in the run's folder. A sink that fails is tried again, and the run's page says so.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

from gputui.agent.child_processes import ChildProcess, Ended, adopt, forget_child, start
from gputui.agent.context import AgentContext
from gputui.charts.units import duration
from gputui.reports.export.formats import Format, is_format
from gputui.reports.export.memory import MemoryPlace
from gputui.reports.export.sink_factory import absolute_target, memory_key_of
from gputui.runs.command import sink_target
from gputui.runs.spec import SpecError
from gputui.runs.submission import SPEC_FILE, read_spec
from gputui.store.events import SINK_KINDS, EventKind, add_event, last_kind
from gputui.store.metrics.exported import is_told
from gputui.store.run_states import RunState

log = logging.getLogger(__name__)

# After each failure in a row the next try waits longer.
AGAIN_SECONDS = (2.0, 5.0, 15.0, 60.0, 300.0)
# After a run's end a sink that gets nowhere is tried for so long; the next agent tries again.
PATIENCE_SECONDS = 900.0
# How long after a run's end an agent that starts still looks whether its sinks are complete.
RECENT_SECONDS = 7 * 86400.0


@dataclass(slots=True)
class _Sink:
    """One sink of one run. Times are monotonic but ``reported_at`` and ``written_at``, which are UTC unix seconds.
    ``reported`` is the kind of its newest event, None where that is no trouble; ``problem`` is what this agent met.
    ``ended`` is how its process ended, until all that follows from it is recorded. ``failures`` and ``refusals`` are in
    a row: of the latter, a process that cannot be seen from here held its lock."""

    run_id: str
    name: Format
    place: MemoryPlace
    process: ChildProcess | None = None
    ended: Ended | None = None
    failures: int = 0
    refusals: int = 0
    again_at: float = 0.0
    reported: str | None = None
    reported_at: float = 0.0
    problem: str = ""
    over_since: float | None = None
    written_at: float = 0.0


@dataclass(slots=True)
class Sinks:
    """The sinks of one state directory."""

    context: AgentContext
    sinks: dict[tuple[str, str], _Sink] = field(default_factory=dict)
    seen_move: int = 0

    def begin(self) -> None:
        """Find the sinks of runs that live or ended lately. Raises sqlite3.Error."""
        (self.seen_move,) = self.context.connection.execute(
            "SELECT coalesce(max(transition_id), 0) FROM transitions"
        ).fetchone()
        rows = self.context.connection.execute(
            "SELECT run_id FROM runs WHERE (ended_at IS NULL OR ended_at > ?) AND attempt > 0 "
            "AND json_type(spec, '$.sinks') = 'object' AND spec ->> '$.sinks' != '{}' ORDER BY sequence",
            (self.context.now() - RECENT_SECONDS,),
        ).fetchall()
        for (run_id,) in rows:
            self._enter(run_id)

    def turn(self) -> None:
        """Start, restart and let go of what is due; called once a second.

        Raises sqlite3.Error after every sink had its turn; what could not be told is told at a later one.
        """
        moves = self.context.connection.execute(
            "SELECT transition_id, run_id FROM transitions WHERE transition_id > ? ORDER BY transition_id",
            (self.seen_move,),
        ).fetchall()
        for number, run_id in moves:
            self._enter(run_id)
            self.seen_move = number
        refused: sqlite3.Error | None = None
        for sink in list(self.sinks.values()):
            try:
                self._look(sink)
            except sqlite3.Error as error:
                refused = error
        if refused is not None:
            raise refused

    def is_busy(self) -> bool:
        """Whether something is still to be written of a run that is over."""
        return any(sink.over_since is not None for sink in self.sinks.values())

    def close(self) -> None:
        """This agent ends; the processes go on and are found by the next one."""
        for sink in self.sinks.values():
            if sink.process is not None:
                forget_child(sink.process)
        self.sinks.clear()

    # --- which there are ------------------------------------------------------------------------------------------

    def _enter(self, run_id: str) -> None:
        row = self.context.connection.execute(
            "SELECT attempt, spec ->> '$.sinks' FROM runs WHERE run_id = ?", (run_id,)
        ).fetchone()
        if row is None or row[0] == 0 or not (names := json.loads(row[1] or "{}")):
            return
        if all((run_id, name) in self.sinks for name in names):
            return
        run_dir = self.context.workspace.run_dir(run_id)
        try:
            spec = read_spec(run_dir / SPEC_FILE)
        except SpecError as error:
            log.warning("%s: its sinks are not written: %s", run_id, error)
            return
        for name in names:
            if (run_id, name) in self.sinks or not is_format(name) or name not in spec.sinks:
                continue
            target = sink_target(spec.sinks[name], spec.params, run_id=run_id, run_dir=str(run_dir))
            key = memory_key_of(name, run_id, absolute_target(name, target, Path("/")))
            sink = _Sink(run_id, name, MemoryPlace.of(run_dir, name, key))
            if not self._is_complete(sink):
                self._recall_trouble(sink)
                self.sinks[run_id, name] = sink

    def _is_complete(self, sink: _Sink) -> bool:
        """Whether the run is over and everything is written."""
        remembered = sink.place.read()
        if remembered is None or remembered.ended_at is None:
            return False
        return is_told(self.context.connection, sink.run_id, remembered.progress)

    def _is_gone(self, sink: _Sink) -> bool:
        row = self.context.connection.execute("SELECT 1 FROM runs WHERE run_id = ?", (sink.run_id,)).fetchone()
        return row is None

    # --- one of them ----------------------------------------------------------------------------------------------

    def _look(self, sink: _Sink) -> None:
        self._note_end(sink)
        if sink.process is not None:
            sink.ended = sink.process.ended()
            if sink.ended is None:
                self._note_writing(sink)
                return
            sink.process = None
            sink.refusals = sink.refusals + 1 if sink.ended.is_elsewhere else 0
        self._follow_up(sink)
        sink.ended = None

    def _follow_up(self, sink: _Sink) -> None:
        """What is due for a sink without a process."""
        ended = sink.ended
        if self._is_gone(sink):
            del self.sinks[sink.run_id, sink.name]
        elif sink.over_since is not None and self._is_complete(sink):
            self._well_again(sink)
            del self.sinks[sink.run_id, sink.name]
        elif ended is not None and ended.words is not None:
            self._fail(sink, ended.words)
        elif ended is not None and ended.is_elsewhere:
            self._leave_to_other(sink)
        elif self.context.monotonic() >= sink.again_at:
            self._start(sink)

    def _note_end(self, sink: _Sink) -> None:
        row = self.context.connection.execute("SELECT state FROM runs WHERE run_id = ?", (sink.run_id,)).fetchone()
        if row is not None and not RunState(row[0]).is_over:
            sink.over_since = None
        elif sink.over_since is None:
            sink.over_since = self.context.monotonic()

    def _start(self, sink: _Sink) -> None:
        # One that ends at once, and well, is not started over and over.
        sink.again_at = self.context.monotonic() + AGAIN_SECONDS[0]
        sink.process = adopt(sink.place.lock)
        if sink.process is not None:
            return
        try:
            sink.place.make()
            subject = ("--state", str(self.context.workspace.state), "--run", sink.run_id, "--to", sink.name)
            sink.process = start("gputui.reports.export", subject, sink.place.log)
        except OSError as error:
            if not self._is_gone(sink):
                self._fail(sink, f"cannot be started: {error.strerror or error}")

    def _note_writing(self, sink: _Sink) -> None:
        """What its process has got done; one that gets nothing done after the run's end is given up."""
        if sink.reported is None and sink.over_since is None:
            return
        remembered = sink.place.read()
        if remembered is not None and remembered.at > max(sink.written_at, sink.reported_at):
            self._well_again(sink)
            sink.written_at = remembered.at
            sink.failures = 0
            if sink.over_since is not None:
                sink.over_since = self.context.monotonic()
        elif sink.over_since is not None and self.context.monotonic() - sink.over_since > PATIENCE_SECONDS:
            self._give_up(sink, sink.problem or "it gets nothing written")

    def _leave_to_other(self, sink: _Sink) -> None:
        """A process that cannot be seen from here holds the lock: whether it still does is asked less and less often,
        and no longer where it gets nothing done after the run's end."""
        sink.again_at = self.context.monotonic() + AGAIN_SECONDS[min(sink.refusals, len(AGAIN_SECONDS)) - 1]
        if sink.over_since is None:
            return
        remembered = sink.place.read()
        if remembered is not None and remembered.at > sink.written_at:
            sink.written_at = remembered.at
            sink.over_since = self.context.monotonic()
        elif self.context.monotonic() - sink.over_since > PATIENCE_SECONDS:
            self._give_up(sink, f"a process elsewhere holds {sink.place.lock} and gets nothing written")

    def _well_again(self, sink: _Sink) -> None:
        if sink.reported is not None:
            self._event(sink, "sink_recovered", "is written again; nothing is missing", "info")
            sink.reported, sink.problem = None, ""

    def _fail(self, sink: _Sink, words: str) -> None:
        if sink.over_since is not None and self.context.monotonic() - sink.over_since > PATIENCE_SECONDS:
            self._give_up(sink, words)
            return
        if sink.reported is None:
            self._event(sink, "sink_failed", f"{words}; the run goes on, and this is tried again", "warning")
            sink.reported = "sink_failed"
        sink.problem, sink.reported_at = words, self.context.now()
        seconds = AGAIN_SECONDS[min(sink.failures, len(AGAIN_SECONDS) - 1)]
        sink.again_at = self.context.monotonic() + seconds
        sink.failures += 1
        log.warning("%s: sink %s: %s; again in %s", sink.run_id, sink.name, words, duration(seconds))

    def _give_up(self, sink: _Sink, words: str) -> None:
        if sink.reported != "sink_incomplete":
            text = f"is not complete: {words}; given up until the next agent, or gputui export {sink.run_id}"
            self._event(sink, "sink_incomplete", text, "error")
        if sink.process is not None:
            sink.process.kill()
        del self.sinks[sink.run_id, sink.name]

    def _recall_trouble(self, sink: _Sink) -> None:
        """Take over what an agent before this one reported, so that it is not reported twice, and its end is."""
        last = last_kind(self.context.connection, sink.run_id, SINK_KINDS, sink.name)
        if last is not None and last[0] != "sink_recovered":
            sink.reported, sink.reported_at = last

    def _event(self, sink: _Sink, kind: EventKind, text: str, severity: str) -> None:
        add_event(
            self.context.connection,
            kind,
            f"sink {sink.name}: {text}",
            now=self.context.now(),
            key=sink.name,
            severity=severity,
            run_id=sink.run_id,
        )
