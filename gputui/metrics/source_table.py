"""The stored sources of metrics: a run's files, how far each was read, and where its attempts begin in it."""

from __future__ import annotations

import glob
import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gputui.metrics.batch import SourceState
from gputui.metrics.formats import PRINTED_STREAMS, Reading, line_format
from gputui.metrics.records import TRACKERS
from gputui.metrics.source_reader import Boundary

# The format of an attempt's output, which is a source of its own. The run's source of format PRINTED only says how to
# read it.
PRINTED = "stdout"
ATTEMPT_OUTPUT = "output"

_COLUMNS = "s.source_id, s.run_id, s.path, s.format, s.reading"


class SourceRow(NamedTuple):
    """A source as it is registered. ``path`` is a file, a glob or a folder, see `SourceTable.register`; ``reading`` is
    a `Reading` as JSON."""

    source_id: int
    run_id: str
    path: str
    format: str
    reading: str | None

    @property
    def pattern(self) -> str:
        """The path or glob of its files."""
        return f"{self.path}/{TRACKERS[self.format][0]}" if self.format in TRACKERS else self.path


class SourceTable:
    """The tables ``metric_sources`` and ``metric_boundaries``. Methods that write work inside the caller's transaction.
    All raise sqlite3.Error."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def register(self, run_id: str, path: str, kind: str, reading: Reading) -> None:
        """Add a source, unless the run has it. See `MetricsIngest.open_source`."""
        if kind in PRINTED_STREAMS:
            reading = reading._replace(streams=PRINTED_STREAMS[kind])
            kind = PRINTED
        if kind != "hf" and kind not in TRACKERS:
            line_format(kind, reading)
        self.connection.execute(
            "INSERT OR IGNORE INTO metric_sources (run_id, path, format, reading, mark_count) VALUES (?, ?, ?, ?, 0)",
            (run_id, path, kind, reading.to_json()),
        )

    def files_of(self, run_id: str) -> list[SourceRow]:
        """The sources that the run's profile names, without the output of its attempts."""
        rows = self.connection.execute(
            f"SELECT {_COLUMNS} FROM metric_sources AS s WHERE run_id = ? AND format NOT IN (?, ?)",  # noqa: S608
            (run_id, ATTEMPT_OUTPUT, PRINTED),
        )
        return [SourceRow(*row) for row in rows.fetchall()]

    def growing(self, condition: str, values: tuple[str, ...] = ()) -> list[SourceRow]:
        """The sources that can still grow, of runs that satisfy an SQL condition: of outputs only those of the newest
        attempt."""
        rows = self.connection.execute(
            f"SELECT {_COLUMNS} FROM metric_sources AS s "  # noqa: S608
            f"JOIN runs USING (run_id) WHERE {condition} AND s.format != '{PRINTED}' "
            f"AND (s.format != '{ATTEMPT_OUTPUT}' OR "
            "(SELECT max(b.attempt) FROM metric_boundaries AS b WHERE b.source_id = s.source_id) = "
            "(SELECT max(b.attempt) FROM metric_sources AS o JOIN metric_boundaries AS b USING (source_id) "
            f"WHERE o.run_id = s.run_id AND o.format = '{ATTEMPT_OUTPUT}')) ORDER BY s.source_id",
            values,
        )
        return [SourceRow(*row) for row in rows.fetchall()]

    def position(self, source_id: int) -> tuple[SourceState, list[Boundary]]:
        """How far a source was read, and where its attempts begin."""
        row = self.connection.execute(
            "SELECT inode, generation, byte_offset, skipping, fingerprint, mark_count, is_rewritten "
            "FROM metric_sources WHERE source_id = ?",
            (source_id,),
        ).fetchone()
        boundaries = self.connection.execute(
            "SELECT generation, byte_offset, attempt FROM metric_boundaries WHERE source_id = ? "
            "ORDER BY generation, byte_offset, attempt",
            (source_id,),
        ).fetchall()
        return SourceState(*(row or ())), [Boundary(*values) for values in boundaries]

    def begin_attempt(self, run_id: str, attempt: int, ends: Mapping[int, SourceState], rank_output: str) -> None:
        """Store that lines behind ``ends`` belong to ``attempt``, and register its output. See
        `MetricsIngest.begin_attempt`."""
        printed = self.connection.execute(
            "SELECT path, reading FROM metric_sources WHERE run_id = ? AND format = ?", (run_id, PRINTED)
        ).fetchall()
        for path, reading in printed:
            self._add_output(run_id, attempt, f"{glob.escape(path)}/attempts/{attempt}/{rank_output}", reading)
        for source_id, end in ends.items():
            _, boundaries = self.position(source_id)
            # Lines before a run's first attempt are not its own: they count as read.
            if not boundaries and end.byte_offset:
                self.connection.execute(
                    "UPDATE metric_sources SET inode = ?, generation = ?, byte_offset = ?, fingerprint = ?, "
                    "mark_count = NULL WHERE source_id = ?",
                    (end.inode, end.generation, end.byte_offset, end.fingerprint, source_id),
                )
            self._add_boundary(source_id, end.position, attempt)

    def learn(self, source: SourceRow, epochs: Mapping[str, Sequence[int]]) -> None:
        """Keep what an output has shown about its epochs for its next reader, and for the run's later attempts."""
        self.connection.execute(
            "UPDATE metric_sources SET reading = json_patch(reading, ?) "
            "WHERE source_id = ? OR (run_id = ? AND format = ?)",
            (json.dumps({"epochs": epochs}), source.source_id, source.run_id, PRINTED),
        )

    def _add_output(self, run_id: str, attempt: int, output: str, reading: str | None) -> None:
        """Register the output of an attempt: one file per stream, ``output`` with ``{stream}`` replaced."""
        for path in dict.fromkeys(output.replace("{stream}", stream) for stream in Reading.from_json(reading).streams):
            self.connection.execute(
                "INSERT OR IGNORE INTO metric_sources (run_id, path, format, reading) VALUES (?, ?, ?, ?)",
                (run_id, path, ATTEMPT_OUTPUT, reading),
            )
            (source_id,) = self.connection.execute(
                "SELECT source_id FROM metric_sources WHERE run_id = ? AND path = ?", (run_id, path)
            ).fetchone()
            self._add_boundary(source_id, (0, 0), attempt)

    def _add_boundary(self, source_id: int, position: tuple[int, int], attempt: int) -> None:
        self.connection.execute(
            "INSERT OR IGNORE INTO metric_boundaries (source_id, generation, byte_offset, attempt) VALUES (?, ?, ?, ?)",
            (source_id, *position, attempt),
        )
