"""The sinks of all runs: each has a process until its run is over and fully exported."""

from __future__ import annotations

import json
import logging
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

from gputui.agent.context import AgentContext
from gputui.agent.exports.live_sink import LiveSink
from gputui.reports.export.formats import is_format
from gputui.reports.export.memory import MemoryPlace
from gputui.reports.export.sink_factory import absolute_target, memory_key_of
from gputui.runs.command import sink_target
from gputui.runs.spec import RunSpec, SpecError
from gputui.runs.submission import SPEC_FILE, read_spec

log = logging.getLogger(__name__)

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
