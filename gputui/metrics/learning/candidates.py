"""Lines of one shape, collected until it is sure what they say."""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.training_log import MAX_STEP
from gputui.metrics.learning.columns import PrintedLine, PrintedNumber
from gputui.metrics.learning.tokens import numbers_of
from gputui.metrics.learning.words import Sense

MAX_ROWS = 6  # twice the least that decide, so that a wrong start is outgrown
_TRIED_LINES = 24  # what these do not show, the next ones seldom do
_RESTING_PERIOD = 64  # after them a few are tried again, at a tenth of the cost
_HEADER_WORDS = 4  # "Training epoch 3 of 10"; more words are a sentence

NEWEST = "newest step"
"""The count of the learned shapes, among those of the lines that only count."""


class Row(Struct, frozen=True, array_like=True):
    """What is kept of one line.

    Attributes:
        numbers: The numbers in each column, two of a pair; None for one that is not finite.
        counts: How far each candidate that only counts was at that time, by its key.
        part_before: The part of the data that the metric line before names.
        rank: The rank that stands before the line.
    """

    numbers: tuple[tuple[float | int | None, ...], ...]
    counts: Mapping[str, int]
    part_before: str | None
    rank: int | None


class Candidate(Struct, frozen=True, array_like=True):
    """A shape whose newest lines are collected.

    Attributes:
        text: The first line.
        header: The names of the columns, if its first line is a row of a table.
        lines: How many came.
        rows: The newest of them.
        counted: How far the counter of lines that only count went, over all epochs.
        is_crowded: The lines come several times for one step, with other numbers.
    """

    text: str
    header: tuple[str, ...]
    lines: int = 0
    rows: tuple[Row, ...] = ()
    counted: int = 0
    is_crowded: bool = False

    @property
    def is_resting(self) -> bool:
        """Whether the next line is only numbered: of those that long were not sure, a few count now and then."""
        return self.lines >= _TRIED_LINES and self.lines % _RESTING_PERIOD >= MAX_ROWS

    def with_line(
        self, line: PrintedLine, counts: Mapping[str, int], part_before: str | None, rank: int | None
    ) -> Candidate:
        """The candidate with one line more."""
        numbers = tuple(tuple(map(_finite, numbers_of(line.tokens[column.token]))) for column in line.columns)
        row = Row(numbers, counts, part_before, rank)
        last = self.rows[-1] if self.rows else None
        counted = replace(self, lines=self.lines + 1)
        if last is None or (rank is not None and last.rank is not None and rank < last.rank):
            return replace(counted, rows=(row,), is_crowded=False)
        if rank != last.rank:
            return counted
        if _is_crowd(line, last, row):
            counted = replace(counted, is_crowded=True)
        if counts == last.counts and _is_same_place(line, last, row):
            return counted
        progress = min(MAX_STEP, self.counted + _progress(line, last, row))
        return replace(counted, rows=(*self.rows, row)[-MAX_ROWS:], counted=progress)


def has_metric(line: PrintedLine) -> bool:
    """Return whether a number has the name of a metric."""
    return any(column.meaning is Sense.METRIC for column in line.columns)


def is_promising(line: PrintedLine) -> bool:
    """Return whether a line may hold metrics: a number with the name of one, or an unknown one beside a counter."""
    if has_metric(line):
        return True
    meanings = {column.meaning for column in line.columns}
    is_named = any(column.meaning is Sense.UNKNOWN and column.name for column in line.columns)
    return is_named and not meanings.isdisjoint({Sense.STEP, Sense.EPOCH})


def is_counter(line: PrintedLine) -> bool:
    """Return whether a line counts: a bar, or a header."""
    return any(map(_is_counter, line.columns))


def names_epoch(line: PrintedLine) -> bool:
    """Return whether a line that only counts is the header of an epoch."""
    column = counter_of(line)
    word_count = sum(token.kind == "word" for token in line.tokens)
    return column is line.columns[0] and column.meaning is Sense.EPOCH and word_count <= _HEADER_WORDS


def _finite(number: float | int | None) -> float | int | None:
    if number is not None and math.isfinite(number):
        return number
    return None


def _is_counter(column: PrintedNumber) -> bool:
    return (column.is_pair and column.is_bar) or column.meaning in (Sense.STEP, Sense.EPOCH)


def counter_of(line: PrintedLine) -> PrintedNumber | None:
    """The column of a line that only counts; None if it is no whole number."""
    column = next(filter(_is_counter, line.columns), None)
    if column is None or not all(type(number) is int for number in numbers_of(line.tokens[column.token])):
        return None
    return column


def _progress(line: PrintedLine, last: Row, row: Row) -> int:
    """How much further the counter of a line that only counts is than in the row before."""
    column = counter_of(line)
    if column is None:
        return 0
    index = line.columns.index(column)
    before = last.numbers[index]
    now = row.numbers[index]
    place = before[0]
    now_place = now[0]
    if type(place) is not int or type(now_place) is not int:
        return 0
    if now_place >= place:
        return now_place - place
    return now_place


def _is_same_place(line: PrintedLine, last: Row, row: Row) -> bool:
    """Return whether a line names a place that is that of the row before: another rank, or a bar that is redrawn."""
    counters = [index for index, column in enumerate(line.columns) if _is_counter(column) or column.may_be_place]
    return bool(counters) and all(row.numbers[index] == last.numbers[index] for index in counters)


def _is_crowd(line: PrintedLine, last: Row, row: Row) -> bool:
    """Return whether two lines of one epoch or step, with other numbers, are of several things: classes, layers."""
    if row.numbers == last.numbers or any(column.is_pair and column.is_bar for column in line.columns):
        return False
    epoch = next((index for index, column in enumerate(line.columns) if column.meaning is Sense.EPOCH), None)
    if epoch is None:
        return bool(row.counts) and row.counts == last.counts
    if row.numbers[epoch] != last.numbers[epoch]:
        return False
    changed = (
        column
        for column, number, earlier in zip(line.columns, row.numbers, last.numbers, strict=True)
        if number != earlier and type(number[0]) is int
    )
    return any(column.meaning in (Sense.UNKNOWN, Sense.IGNORED) for column in changed)
