"""Summaries of the samples of a minute or an hour, which are kept when the samples are deleted. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Kept(NamedTuple):
    """A column of samples and its statistics that are kept. Means are rounded to ``digits`` decimals."""

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
MEMORY_TEMPERATURE = Kept("memory_temperature_celsius", _NO_PERCENTILE, 2)
"""A value of the slow samples of a GPU."""

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
    """The columns in the order of `Gathered.summary`."""
    return [f"{column.column}_{part}" for column in kept for part in column.parts]


@dataclass(slots=True)
class Gathered:
    """Samples of one span, added in batches. ``samples`` is their number, ``answered`` the number of those in which the
    GPU answered."""

    kept: Sequence[Kept]
    samples: int = 0
    answered: int = 0
    _columns: list[list[float]] = field(default_factory=list)
    _known: int = 0
    _throttled: int = 0

    def add(
        self,
        columns: Sequence[Sequence[float | None]],
        states: Sequence[str] = (),
        reasons: Sequence[str | None] = (),
    ) -> None:
        """Add a batch: one sequence per kept column; ``reasons`` are throttle reasons as JSON lists."""
        if not self._columns:
            self._columns = [[] for _ in self.kept]
        self.samples += len(columns[0])
        self.answered += states.count("ok")
        known = [given for given in reasons if given is not None]
        self._known += len(known)
        self._throttled += len(known) - known.count("[]")
        for own, column in zip(self._columns, columns, strict=True):
            # Timsort merges sorted batches quickly.
            own += sorted(value for value in column if value is not None)

    def summary(self) -> list[float | int | None]:
        """The values in the order of `names`; None without a known value."""
        found: list[float | int | None] = []
        for one, values in zip(self.kept, self._columns or [[]] * len(self.kept), strict=True):
            values.sort()
            parts = _parts(values, one.digits) if values else {}
            found += [parts.get(part) for part in one.parts]
        return found

    @property
    def throttled_fraction(self) -> float | None:
        """The share of samples with a throttle reason; None if the driver reported nothing."""
        return None if not self._known else round(self._throttled / self._known, 4)


def _parts(values: Sequence[float], digits: int) -> Mapping[str, float | int]:
    mean = math.fsum(values) / len(values)
    return {
        "mean": round(mean, digits) if digits else round(mean),
        "min": values[0],
        "max": values[-1],
        "p95": values[math.ceil(0.95 * len(values)) - 1],
    }
