"""The epochs that reduced lines name, for an axis of epochs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from gputui.metrics.curves.lines import EPOCH, Part, parts
from gputui.store.metrics import envelopes
from gputui.store.metrics.envelopes import FAN, Entry, Stretch


class EpochPoint(NamedTuple):
    """The epoch that a line of an attempt names."""

    attempt: int
    step: float
    epoch: float


def epoch_points(connection: sqlite3.Connection, stretches: Sequence[Stretch], least: int) -> Iterator[EpochPoint]:
    """The first and the last epoch of each entry, of at least ``least`` entries if there are so
    many. An entry in which the epoch changes is replaced by those of level 0, so that the step of
    the change is exact to a few lines."""
    for part in parts(stretches, {}):
        highest = envelopes.level_for(part.line_count, least)
        for level, begin, end in part.entry_ranges(highest):
            for entry in part.entries_between(connection, EPOCH, level, begin, end):
                for finest in _split_at_change(connection, part, level, entry):
                    if finest.has_finite:
                        yield EpochPoint(part.attempt, float(finest.first_step), finest.first)
                        yield EpochPoint(part.attempt, float(finest.last_step), finest.last)


def _split_at_change(connection: sqlite3.Connection, part: Part, level: int, entry: Entry) -> Iterable[Entry]:
    """The entry, or those of level 0 in its place if the epoch changes in it."""
    if level == 0 or not entry.low < entry.high:
        return [entry]
    width = int(FAN**level)
    return part.entries_between(connection, EPOCH, 0, entry.place * width, (entry.place + 1) * width)
