"""Sums of samples: rollups into minutes and hours, and the energy of each attempt.

A span that is over is computed from stored samples. A mark of progress moves in the transaction
that writes the span's row, so the successor of a killed agent repeats the span. A span that is
repeated because the clock was set back gives the same row plus its new samples.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from gputui.machine.schedule import SLOW_SECONDS
from gputui.store import samples
from gputui.store.attempts import FellowStay, consumed_joules, energy_between, fellows, own_seconds
from gputui.store.rollups import GPU_KEPT, HOST_KEPT, HOUR, MEMORY_TEMPERATURE, MINUTE, names, summary
from gputui.store.samples import Row
from gputui.store.series import GPU, HOST, HOST_ID, SLOW

Write = Callable[[], AbstractContextManager[sqlite3.Connection]]
"""Begins a transaction of the janitor."""

_GPU_COLUMNS = ("state", "throttle_reasons", *(statistic.column for statistic in GPU_KEPT))
_HOST_COLUMNS = tuple(statistic.column for statistic in HOST_KEPT)
_GPU_NAMES = [
    "gpu_id", "at", "sample_count", *names(GPU_KEPT), "throttled_fraction", "energy_joules",
    *names((MEMORY_TEMPERATURE,)),
]  # fmt: skip
_HOST_NAMES = ["at", "sample_count", *names(HOST_KEPT)]

BORDER_SECONDS = 120.0
"""If an attempt begins or ends between two readings further apart than this, the difference does
not count, because the attempt's part of it is unknown. Within an attempt any distance counts."""

READINGS_AT_ONCE = 5000  # hours of a GPU, read in a few milliseconds


@dataclass(frozen=True, slots=True)
class Rollups:
    """Computes the rollups of all sources. ``interval_seconds`` is the sampling interval."""

    connection: sqlite3.Connection
    interval_seconds: float
    write: Write

    def roll_up(self, now: float) -> bool:
        """Roll up at most an hour of each source that is over by ``now`` (UTC unix seconds); True
        if more are left. Raises sqlite3.Error without a partial change."""
        # A span's energy needs the first counter reading after it.
        over_by = now - max(SLOW_SECONDS, self.interval_seconds) * 2
        sources = [HOST_ID, *(row[0] for row in self.connection.execute("SELECT gpu_id FROM gpus ORDER BY gpu_id"))]
        marks = {
            (span, source): mark
            for span, source, mark in self.connection.execute("SELECT span_seconds, gpu_id, until FROM rollup_marks")
        }
        is_more = False
        for span in (MINUTE, HOUR):
            end = int(over_by // span * span)
            for source in sources:
                mark = marks.get((span, source), 0)
                if mark != end:
                    is_more |= self._advance(span, source, mark, end)
        return is_more

    def _advance(self, span: int, source: int, mark: int, end: int) -> bool:
        """Roll up an hour of one source after its mark; True if more is left before ``end``."""
        series = GPU
        columns = _GPU_COLUMNS
        if source == HOST_ID:
            series = HOST
            columns = _HOST_COLUMNS
        first = samples.between(self.connection, series, source, columns=(), times=(mark, end), limit=1)
        # Where the mark is after the end, the clock was set back: new samples belong to spans that
        # are done already.
        reached = end
        if first:
            reached = min(end, int(first[0][0] // HOUR + 1) * HOUR)
        rows = samples.between(self.connection, series, source, columns, (mark, reached))
        spans = [(at, list(group)) for at, group in groupby(rows, key=lambda row: int(row[0] // span) * span)]
        summaries = [self._summary(span, source, at, group) for at, group in spans]
        with self.write() as connection:
            if summaries:
                self._store(connection, span, source, summaries)
            connection.execute(
                "INSERT INTO rollup_marks (span_seconds, gpu_id, until) VALUES (?, ?, ?) "
                "ON CONFLICT DO UPDATE SET until = excluded.until",
                (span, source, reached),
            )
        return reached != end

    def _summary(self, span: int, source: int, at: int, rows: Sequence[Row]) -> list[object]:
        columns = list(zip(*rows, strict=True))[1:]
        if source == HOST_ID:
            return [at, len(rows), *summary(HOST_KEPT, columns)]
        states, reasons, *values = columns
        reported = [reason for reason in reasons if reason is not None]
        throttled = None
        if reported:
            throttled = round(1 - reported.count("[]") / len(reported), 4)
        longest = max(60.0, 3 * self.interval_seconds)
        slow = samples.between(
            self.connection,
            SLOW,
            source,
            ("energy_joules", MEMORY_TEMPERATURE.column),
            (at - longest, at + span + longest),
        )
        readings = [(when, joules) for when, joules, _ in slow if joules is not None]
        energy = energy_between(readings, at, at + span, longest)
        if energy is not None:
            energy = round(energy, 1)
        warmth = [celsius for when, _, celsius in slow if at <= when < at + span]
        return [
            source,
            at,
            states.count("ok"),
            *summary(GPU_KEPT, values),
            throttled,
            energy,
            *summary((MEMORY_TEMPERATURE,), [warmth]),
        ]

    def _store(
        self, connection: sqlite3.Connection, span: int, source: int, summaries: Sequence[Sequence[object]]
    ) -> None:
        columns = _GPU_NAMES
        kind = "gpu"
        if source == HOST_ID:
            columns = _HOST_NAMES
            kind = "host"
        table = f"{kind}_minutes" if span == MINUTE else f"{kind}_hours"
        (raw_since,) = connection.execute("SELECT raw_since FROM record_bounds").fetchone()
        at_index = columns.index("at")
        for values in summaries:
            # A span whose samples were deleted keeps the row that was computed from all of them.
            clash = "IGNORE" if int(str(values[at_index])) < raw_since else "REPLACE"
            connection.execute(
                f"INSERT OR {clash} INTO {table} "  # noqa: S608
                f"({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})",
                values,
            )


def add_energy_readings(connection: sqlite3.Connection, now: float) -> None:
    """Add new readings of the GPUs' energy counters to the sums of all attempts. Raises sqlite3.Error.

    A sum is stored together with the time up to which readings are counted, so that each reading counts once.
    It outlives the readings.
    """
    attempts = connection.execute(
        "SELECT run_id, number, gpus, started_at, ended_at FROM attempts AS a "
        "WHERE started_at NOTNULL AND iif(json_valid(gpus), json_array_length(gpus), 0) > ("
        "SELECT count(*) FROM attempt_energy AS e "
        "WHERE e.run_id = a.run_id AND e.attempt = a.number AND e.settled = 1)"
    ).fetchall()
    for run_id, number, gpus, began, ended in attempts:
        for uuid in json.loads(gpus):
            _count_readings(connection, (run_id, number, uuid), began, ended, now)


class _Stay(NamedTuple):
    """The stay of an attempt on a GPU (UTC unix seconds).

    Attributes:
        ended: None while the attempt lives.
        others: the runs that used the GPU meanwhile.
    """

    began: float
    ended: float | None
    others: Sequence[FellowStay]


class _EnergySum(NamedTuple):
    """The energy of an attempt on one GPU, as far as its counter is read.

    Attributes:
        counted_to: the time of the newest counted reading (UTC unix seconds).
        counter: the counter's joules then; None before the first reading.
        energy: the joules of the attempt; None if there are none to tell.
    """

    counted_to: float
    counter: float | None = None
    energy: float | None = None

    def with_reading(self, at: float, joules: float, stay: _Stay) -> _EnergySum:
        """The sum with the next reading of the counter."""
        energy = self.energy
        if self.counter is not None:
            begin = max(self.counted_to, stay.began)
            end = at if stay.ended is None else min(at, stay.ended)
            distance = at - self.counted_to
            is_border = end - begin < distance
            is_unknown = is_border and distance > BORDER_SECONDS
            if end > begin and not is_unknown:
                share = own_seconds(begin, end, stay.others) / distance
                consumed = consumed_joules((self.counted_to, self.counter), (at, joules))
                energy = (energy or 0.0) + consumed * share
        return _EnergySum(at, joules, energy)


def _count_readings(
    connection: sqlite3.Connection, key: tuple[str, int, str], began: float, ended: float | None, now: float
) -> None:
    """Add the new readings of one GPU to the sum of an attempt. ``key`` is the run, the attempt's
    number and the GPU's UUID."""
    run_id, number, uuid = key
    row = connection.execute(
        "SELECT until, counter_joules, energy_joules, settled FROM attempt_energy "
        "WHERE run_id = ? AND attempt = ? AND gpu_uuid = ?",
        key,
    ).fetchone()
    counted = _EnergySum(began - BORDER_SECONDS)
    if row is not None:
        *stored, is_settled = row
        if is_settled:
            return
        counted = _EnergySum(*stored)
    last = now if ended is None else ended + BORDER_SECONDS
    readings, reached = _readings(connection, uuid, counted.counted_to, last)
    stay = _Stay(began, ended, fellows(connection, run_id, number))
    for at, joules in readings:
        counted = counted.with_reading(at, joules, stay)
        if ended is not None and at >= ended:
            break
    if counted.counter is None:
        # A GPU without a counter is not scanned again: no reading with an earlier time can follow.
        counted = counted._replace(counted_to=max(counted.counted_to, last - BORDER_SECONDS))
    is_read_out = reached > last and now > last
    is_settled = ended is not None and (counted.counted_to >= ended or is_read_out)
    connection.execute(
        "INSERT OR REPLACE INTO attempt_energy "
        "(run_id, attempt, gpu_uuid, until, counter_joules, energy_joules, settled) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (*key, *counted, is_settled),
    )


def _readings(
    connection: sqlite3.Connection, uuid: str, after: float, last: float
) -> tuple[list[tuple[float, float]], float]:
    """Up to READINGS_AT_ONCE counter values of a GPU after a time and up to ``last``, and the time
    that they reach."""
    row = connection.execute("SELECT gpu_id FROM gpus WHERE uuid = ?", (uuid,)).fetchone()
    end = math.nextafter(last, math.inf)
    if row is None:
        return [], end
    (gpu_id,) = row
    begin = math.nextafter(after, math.inf)
    readings = samples.between(
        connection, SLOW, gpu_id, columns=("energy_joules",), times=(begin, end), limit=READINGS_AT_ONCE
    )
    reached = end if len(readings) < READINGS_AT_ONCE else readings.pop()[0]
    return [(at, joules) for at, joules in readings if joules is not None], reached
