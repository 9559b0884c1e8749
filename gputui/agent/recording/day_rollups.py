"""Daily rollups, computed from hours in the transaction that writes an hour."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from gputui.store.rollups import DAY
from gputui.store.series import HOST_ID
from gputui.store.span_summary import GPU_KEPT, HOST_KEPT, MEMORY_TEMPERATURE, Kept

_WHOLE = frozenset({"memory_used_bytes", "disk_used_bytes"})


def renew(connection: sqlite3.Connection, source: int, hours: Iterable[int]) -> None:
    """Recompute the days of a source that contain ``hours`` (UTC unix seconds). Raises sqlite3.Error."""
    query = _HOST_DAY if source == HOST_ID else _GPU_DAY
    for day in sorted({hour // DAY * DAY for hour in hours}):
        connection.execute(query, {"gpu_id": source, "day": float(day), "end": float(day + DAY)})


def _query(kind: str, kept: Sequence[Kept], own: Sequence[tuple[str, str]]) -> str:
    parts = [("at", ":day"), ("sample_count", "sum(sample_count)")]
    for column in kept:
        means = _mean(f"{column.column}_mean", column.digits)
        parts.append((f"{column.column}_mean", f"CAST({means} AS INTEGER)" if column.column in _WHOLE else means))
        parts += [
            (f"{column.column}_{part}", f"{part}({column.column}_{part})")
            for part in ("min", "max")
            if part in column.parts
        ]
    parts += own
    names, values = zip(*parts, strict=True)
    where = "gpu_id = :gpu_id AND " if kind == "gpu" else ""
    return (
        f"INSERT OR REPLACE INTO {kind}_days ({', '.join(names)}) SELECT {', '.join(values)} FROM {kind}_hours "  # noqa: S608
        f"WHERE {where}at >= :day AND at < :end HAVING count(*) > 0"
    )


def _mean(name: str, digits: int) -> str:
    """SQL for the mean of an hourly column, weighted by samples; hours without a value are left out."""
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
