"""Days out of hours: renewed whenever an hour of theirs is put together, in the same transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from gputui.store.rollups import DAY
from gputui.store.series import HOST_ID
from gputui.store.span_summary import GPU_KEPT, HOST_KEPT, MEMORY_TEMPERATURE, Kept

_WHOLE = frozenset({"memory_used_bytes", "disk_used_bytes"})


def renew(connection: sqlite3.Connection, source: int, hours: Iterable[int]) -> None:
    """Put together the days in which hours of a source begin (UTC unix seconds). Raises sqlite3.Error."""
    query = _HOST_DAY if source == HOST_ID else _GPU_DAY
    for day in sorted({hour // DAY * DAY for hour in hours}):
        connection.execute(query, {"gpu_id": source, "day": float(day), "end": float(day + DAY)})


def _query(kind: str, kept: Sequence[Kept], own: Sequence[tuple[str, str]]) -> str:
    parts = [("at", ":day"), ("sample_count", "sum(sample_count)")]
    for one in kept:
        means = _mean(f"{one.column}_mean", one.digits)
        parts.append((f"{one.column}_mean", f"CAST({means} AS INTEGER)" if one.column in _WHOLE else means))
        parts += [
            (f"{one.column}_{part}", f"{part}({one.column}_{part})") for part in ("min", "max") if part in one.parts
        ]
    parts += own
    names, values = zip(*parts, strict=True)
    where = "gpu_id = :gpu_id AND " if kind == "gpu" else ""
    return (
        f"INSERT OR REPLACE INTO {kind}_days ({', '.join(names)}) SELECT {', '.join(values)} FROM {kind}_hours "  # noqa: S608
        f"WHERE {where}at >= :day AND at < :end HAVING count(*) > 0"
    )


def _mean(name: str, digits: int) -> str:
    """Each hour counts as much as it has samples; one that knew nothing counts for nothing."""
    return f"round(sum({name} * sample_count) / sum(CASE WHEN {name} NOTNULL THEN sample_count END), {digits})"


_GPU_DAY = _query(
    "gpu",
    (*GPU_KEPT, MEMORY_TEMPERATURE),
    [
        ("gpu_id", ":gpu_id"),
        ("throttled_fraction", _mean("throttled_fraction", 4)),
        ("energy_joules", "sum(energy_joules)"),
    ],
)
_HOST_DAY = _query("host", HOST_KEPT, [])
