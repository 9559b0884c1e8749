"""The energy of each attempt, summed from the energy counters of its GPUs.

The sum is stored together with the time up to which readings are counted, so that each reading
counts once. It outlives the readings.
"""

from __future__ import annotations

import json
import math
import sqlite3

from gputui.store import samples
from gputui.store.attempts import consumed_joules, fellows, own_seconds
from gputui.store.series import SLOW

BORDER_SECONDS = 120.0
"""If an attempt begins or ends between two readings further apart than this, the difference does
not count, because the attempt's part of it is unknown. Within an attempt any distance counts."""

READINGS_AT_ONCE = 5000


def settle(connection: sqlite3.Connection, now: float) -> None:
    """Add new readings to the sums of all attempts. Raises sqlite3.Error."""
    attempts = connection.execute(
        "SELECT run_id, number, gpus, started_at, ended_at FROM attempts AS a "
        "WHERE started_at NOTNULL AND iif(json_valid(gpus), json_array_length(gpus), 0) > ("
        "SELECT count(*) FROM attempt_energy AS e "
        "WHERE e.run_id = a.run_id AND e.attempt = a.number AND e.settled = 1)"
    ).fetchall()
    for run_id, number, gpus, began, ended in attempts:
        for uuid in json.loads(gpus):
            _count_readings(connection, (run_id, number, uuid), began, ended, now)


def _count_readings(
    connection: sqlite3.Connection, key: tuple[str, int, str], began: float, ended: float | None, now: float
) -> None:
    """Add the new readings of one GPU to the sum of an attempt. ``key`` is the run, the attempt's
    number and the GPU's UUID."""
    row = connection.execute(
        "SELECT until, counter_joules, energy_joules, settled FROM attempt_energy "
        "WHERE run_id = ? AND attempt = ? AND gpu_uuid = ?",
        key,
    ).fetchone()
    if row is not None and row[3]:
        return
    counted_to = began - BORDER_SECONDS
    counter = None
    energy = None
    if row is not None:
        counted_to, counter, energy = row[:3]
    last = now if ended is None else ended + BORDER_SECONDS
    readings, reached = _readings(connection, key[2], counted_to, last)
    others = fellows(connection, key[0], key[1])
    for at, joules in readings:
        if counter is not None:
            begin = max(counted_to, began)
            end = at if ended is None else min(at, ended)
            is_border = end - begin < at - counted_to
            if end > begin and not (is_border and at - counted_to > BORDER_SECONDS):
                share = own_seconds(begin, end, others) / (at - counted_to)
                energy = (energy or 0.0) + consumed_joules((counted_to, counter), (at, joules)) * share
        counted_to = at
        counter = joules
        if ended is not None and at >= ended:
            break
    if counter is None:
        # A GPU without a counter is not scanned again: no reading with an earlier time can follow.
        counted_to = max(counted_to, last - BORDER_SECONDS)
    is_read_out = reached > last and now > last
    is_settled = ended is not None and (counted_to >= ended or is_read_out)
    connection.execute(
        "INSERT OR REPLACE INTO attempt_energy "
        "(run_id, attempt, gpu_uuid, until, counter_joules, energy_joules, settled) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (*key, counted_to, counter, energy, is_settled),
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
    begin = math.nextafter(after, math.inf)
    readings = samples.between(connection, SLOW, row[0], ("energy_joules",), begin, end, READINGS_AT_ONCE)
    reached = end if len(readings) < READINGS_AT_ONCE else readings.pop()[0]
    return [(at, joules) for at, joules in readings if joules is not None], reached
