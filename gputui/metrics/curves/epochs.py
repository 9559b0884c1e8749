"""The epochs that lines name, for an axis of epochs."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gputui.metrics.curves.axis import Pairs, monotonic_pairs, thin_out
from gputui.metrics.curves.lines import EPOCH, CurveLine, Part, split_in_parts
from gputui.store.metrics import envelopes
from gputui.store.metrics.envelopes import FAN, Entry, EntryRange, Stretch
from gputui.store.metrics.stored_lines import as_float


class EpochPoint(NamedTuple):
    """The epoch that a line of an attempt names."""

    attempt: int
    step: float
    epoch: float


def epoch_points(connection: sqlite3.Connection, stretches: Sequence[Stretch], least: int) -> Iterator[EpochPoint]:
    """The first and the last epoch of each entry, of at least ``least`` entries if there are so
    many. An entry in which the epoch changes is replaced by those of level 0, so that the step of
    the change is exact to a few lines."""
    for part in split_in_parts(stretches, {}):
        highest = envelopes.level_for(part.line_count, least)
        for entry_range in part.entry_ranges(highest):
            for entry in part.entries_in(connection, EPOCH, entry_range):
                for finest in _split_at_change(connection, part, entry_range.level, entry):
                    if finest.has_finite:
                        yield EpochPoint(part.attempt, float(finest.first_step), finest.first)
                        yield EpochPoint(part.attempt, float(finest.last_step), finest.last)


def _split_at_change(connection: sqlite3.Connection, part: Part, level: int, entry: Entry) -> Iterable[Entry]:
    """The entry, or those of level 0 in its place if the epoch changes in it."""
    if level == 0 or not entry.low < entry.high:
        return [entry]
    width = int(FAN**level)
    return part.entries_in(connection, EPOCH, EntryRange(0, entry.place * width, (entry.place + 1) * width))


def epoch_pairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """(step, epoch with fraction) pairs from (step, epoch as written) pairs.

    Whole epochs are interpolated between their first steps; the running one is assumed to be as
    long as the last. Empty while no epoch has ended and no fraction was written.
    """
    if any(epoch != math.floor(epoch) for _, epoch in points):
        return monotonic_pairs(points)
    begins: list[tuple[float, float]] = []
    for step, epoch in points:
        if not begins or epoch > begins[-1][1]:
            begins.append((step, epoch))
    if len(begins) < 2:
        return []
    (s0, e0), (s1, e1) = begins[-2:]
    return [*begins, (2 * s1 - s0, 2 * e1 - e0)]


class Epochs:
    """(step, epoch with fraction) pairs by attempt, from (step, epoch as written) pairs."""

    def __init__(self, written: Mapping[int, Pairs] | None = None) -> None:
        written = written or {}
        self.pairs = {attempt: epoch_pairs(points) for attempt, points in written.items()}
        self._newest_whole = {
            attempt: max(epoch for _, epoch in points)
            for attempt, points in written.items()
            if all(epoch == math.floor(epoch) for _, epoch in points)
        }

    def add(self, line: CurveLine) -> bool:
        """Add the epoch of a new line. False if it moves earlier lines: an epoch has ended, and its
        length is known now."""
        epoch = epoch_of(line)
        if epoch is None:
            return True
        if line.attempt in self._newest_whole:
            return epoch <= self._newest_whole[line.attempt]
        pairs = self.pairs.get(line.attempt)
        if pairs is None:
            return False
        if not pairs or (line.step > pairs[-1][0] and epoch >= pairs[-1][1]):
            pairs.append((float(line.step), epoch))
            thin_out(pairs)
        return True


def epoch_of(line: CurveLine) -> float | None:
    """The epoch that a line names; None without a finite one."""
    epoch = as_float(line.values.get("epoch"))
    if epoch is not None and math.isfinite(epoch):
        return epoch
    return None
