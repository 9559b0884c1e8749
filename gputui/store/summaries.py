"""Samples of one span put together in one row: what is kept of them, and how it is computed. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MINUTE = 60
HOUR = 3600


class Kept(NamedTuple):
    """A column of samples, and what is kept of it. ``digits`` is to how many decimals a mean is rounded."""

    column: str
    parts: tuple[str, ...]
    digits: int


_ALL = ("mean", "min", "max", "p95")
_NO_PERCENTILE = ("mean", "min", "max")

GPU_KEPT = (
    Kept("utilization_percent", _ALL, 2),
    Kept("memory_used_bytes", _NO_PERCENTILE, 0),
    Kept("temperature_celsius", _ALL, 2),
    Kept("power_watts", _ALL, 2),
    Kept("sm_clock_mhz", _NO_PERCENTILE, 1),
)
HOST_KEPT = (
    Kept("cpu_percent", _ALL, 2),
    Kept("memory_used_bytes", _NO_PERCENTILE, 0),
    Kept("disk_used_bytes", ("mean",), 0),
    Kept("disk_read_bytes_per_second", ("mean",), 0),
    Kept("disk_write_bytes_per_second", ("mean",), 0),
    Kept("network_received_bytes_per_second", ("mean",), 0),
    Kept("network_sent_bytes_per_second", ("mean",), 0),
)


def names(kept: Sequence[Kept]) -> list[str]:
    """The columns of a summary, in the order of `summarise`."""
    return [f"{one.column}_{part}" for one in kept for part in one.parts]


def summarise(kept: Sequence[Kept], columns: Sequence[Sequence[float | None]]) -> list[float | int | None]:
    """The values under `names`, from one sequence of samples for each column; None where no sample knew it."""
    found: list[float | int | None] = []
    for one, column in zip(kept, columns, strict=True):
        values = sorted(value for value in column if value is not None)
        parts = _parts(values, one.digits) if values else {}
        found += [parts.get(part) for part in one.parts]
    return found


def _parts(values: Sequence[float], digits: int) -> Mapping[str, float | int]:
    mean = math.fsum(values) / len(values)
    return {
        "mean": round(mean, digits) if digits else round(mean),
        "min": values[0],
        "max": values[-1],
        "p95": values[math.ceil(0.95 * len(values)) - 1],
    }


def throttled_fraction(reasons: Sequence[Any]) -> float | None:
    """The share of samples that name a reason for lower clocks; None where none was told. Each is a JSON list."""
    told = [given for given in reasons if given is not None]
    return None if not told else round(sum(given != "[]" for given in told) / len(told), 4)
