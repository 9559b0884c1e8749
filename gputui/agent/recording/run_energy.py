"""The energy of each attempt, summed from the energy counters of its GPUs.

The sum is stored together with the time up to which readings are counted, so that each reading
counts once. It outlives the readings.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from gputui.store import samples
from gputui.store.attempts import consumed_joules, fellows, own_seconds
from gputui.store.series import SLOW

BORDER_SECONDS = 120.0
"""If an attempt begins or ends between two readings further apart than this, the difference does
not count, because the attempt's part of it is unknown. Within an attempt any distance counts."""

READINGS_AT_ONCE = 5000


class EnergyTally(Struct, frozen=True):
    """Sum for one GPU of one attempt, with time (UTC unix seconds) and counter of the newest
    counted reading. The counter is None before the first one."""

    until: float
    counter_joules: float | None = None
    energy_joules: float | None = None


def with_reading(
    tally: EnergyTally,
    at: float,
    counter_joules: float,
    began: float,
    ended: float | None,
    others: Sequence[tuple[float, float]] = (),
) -> EnergyTally:
    """Add a reading to the tally of an attempt that ran from ``began`` to ``ended``. ``others`` are
    the begins and ends of attempts that shared the GPU; each gets an equal part. Pure."""
    before = tally.counter_joules
    if before is None:
        return replace(tally, until=at, counter_joules=counter_joules)
    apart = at - tally.until
    end = at if ended is None else min(at, ended)
    overlap = end - max(tally.until, began)
    is_border = overlap < apart
    energy = tally.energy_joules
    if overlap > 0 and not (is_border and apart > BORDER_SECONDS):
        own = own_seconds(end - overlap, end, others)
        energy = (energy or 0.0) + consumed_joules((tally.until, before), (at, counter_joules)) * own / apart
    return EnergyTally(at, counter_joules, energy)


def settle(connection: sqlite3.Connection, now: float) -> None:
    """Add new readings to the sums of all attempts. Raises sqlite3.Error."""
    attempts = connection.execute(
        "SELECT run_id, number, gpus, started_at, ended_at FROM attempts AS a WHERE started_at NOTNULL "
        "AND iif(json_valid(gpus), json_array_length(gpus), 0) > (SELECT count(*) FROM attempt_energy AS e "
        "WHERE e.run_id = a.run_id AND e.attempt = a.number AND e.settled = 1)"
    ).fetchall()
    for run_id, number, gpus, began, ended in attempts:
        for uuid in json.loads(gpus):
            _count_readings(connection, (run_id, number, uuid), began, ended, now)


def _count_readings(
    connection: sqlite3.Connection, key: tuple[str, int, str], began: float, ended: float | None, now: float
) -> None:
    row = connection.execute(
        "SELECT until, counter_joules, energy_joules, settled FROM attempt_energy "
        "WHERE run_id = ? AND attempt = ? AND gpu_uuid = ?",
        key,
    ).fetchone()
    if row is not None and row[3]:
        return
    tally = EnergyTally(*row[:3]) if row is not None else EnergyTally(began - BORDER_SECONDS)
    last = now if ended is None else ended + BORDER_SECONDS
    readings, until = _readings(connection, key[2], tally.until, last)
    others = [(stay.begin, math.inf if stay.end is None else stay.end) for stay in fellows(connection, key[0], key[1])]
    for at, counter in readings:
        tally = with_reading(tally, at, counter, began, ended, others)
        if ended is not None and at >= ended:
            break
    if tally.counter_joules is None:
        # A GPU without a counter is not scanned again: no reading with an earlier time can follow.
        tally = replace(tally, until=max(tally.until, last - BORDER_SECONDS))
    is_read_out = until > last and now > last
    is_settled = ended is not None and (tally.until >= ended or is_read_out)
    connection.execute(
        "INSERT OR REPLACE INTO attempt_energy "
        "(run_id, attempt, gpu_uuid, until, counter_joules, energy_joules, settled) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (*key, tally.until, tally.counter_joules, tally.energy_joules, is_settled),
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
    found = samples.between(connection, SLOW, row[0], ("energy_joules",), begin, end, READINGS_AT_ONCE)
    until = end if len(found) < READINGS_AT_ONCE else found.pop()[0]
    return [(at, joules) for at, joules in found if joules is not None], until
