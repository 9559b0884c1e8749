"""What several lines of one shape show: which number is the step, which are metrics, and whether that is sure.

In: the numbers of lines like "Epoch 2 [20/100] loss: 0.51 (0.60)". Out: the shape of all such lines, in which the
first number is an epoch, the pair a place in it with its total, and the third a metric; None while that is not sure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise, takewhile
from typing import NamedTuple

from gputui.metrics.learning.candidates import NEWEST, Candidate, Row, counter_of
from gputui.metrics.learning.columns import PrintedLine, PrintedNumber
from gputui.metrics.learning.shapes import LearnedColumn, LearnedShape, Role
from gputui.metrics.learning.words import HELD_OUT, PARTS, Sense, has_part

LEAST_ROWS = 3
LEAST_ROWS_UNKNOWN_NAMES = 4
LEAST_ROWS_BESIDE_OTHERS = 2
# The tokens between an epoch and the place in it: "3 [ 150/1251".
_NEAR_TOKENS = 4


class LogSoFar(NamedTuple):
    """What is known of the log: whether metrics, and those with steps of their own, were learned, and whether it has
    ended."""

    has_metrics: bool
    has_steps: bool
    is_over: bool


class Lesson(NamedTuple):
    """A learned shape, and the shape of the lines whose count is its step, if those are not learned yet."""

    shape: LearnedShape
    source: str | None = None


class _Counting(NamedTuple):
    """The columns that count. ``is_named``: their names say so."""

    step: PrintedNumber | None
    epoch: PrintedNumber | None
    is_named: bool

    @property
    def is_held_out(self) -> bool:
        """Whether the words before a place say that it is one of a validation."""
        return self.step is not None and self.step.is_pair and self.step.part in HELD_OUT


def learn(line: PrintedLine, candidate: Candidate, context: LogSoFar) -> Lesson | None:
    """The shape of a candidate, if its lines are sure to hold metrics."""
    evidence = ShapeEvidence(line.columns, candidate.rows)
    counting = evidence.counting
    least = _least_rows(evidence, context)
    if least is None or len(evidence.rows) < least:
        return None
    if counting.is_held_out and not context.has_steps:
        return None
    if candidate.is_crowded and counting.step is None:
        return None
    source = None
    if not evidence.has_place:
        source = _source_of_steps(evidence, context)
        if source is None:
            return None
    if source == NEWEST:
        source = None
    return Lesson(_shape(line, _counters(evidence) | _metrics(evidence), evidence), source)


def _least_rows(evidence: ShapeEvidence, context: LogSoFar) -> int | None:
    """How many lines make sure what they say; None if they measure nothing."""
    is_named = evidence.counting.is_named
    if any(map(evidence.is_metric, evidence.columns)):
        is_familiar = context.has_metrics or (context.is_over and evidence.has_place)
        if is_familiar and (is_named or not evidence.has_place):
            return LEAST_ROWS_BESIDE_OTHERS
        return LEAST_ROWS
    if (
        is_named
        and evidence.has_place
        and context.has_metrics
        and any(map(evidence.is_constant_metric, evidence.columns))
    ):
        # Beside a training, a validation that stands still.
        return LEAST_ROWS
    unknown = filter(evidence.is_unknown_metric, evidence.columns)
    if is_named and any(map(evidence.is_real, unknown)):
        return LEAST_ROWS_UNKNOWN_NAMES
    return None


def _source_of_steps(evidence: ShapeEvidence, context: LogSoFar) -> str | None:
    """The count whose newest value is the step of lines that have none; None if there is none that rises."""
    if any(map(evidence.is_index, evidence.columns)):
        return None
    if not context.has_steps:
        return evidence.advancing_count()
    if evidence.advances(NEWEST):
        return NEWEST
    return None


def _metrics(evidence: ShapeEvidence) -> dict[PrintedNumber, tuple[LearnedColumn, ...]]:
    """What the metrics and settings of a line are, but for its counters. A pair is a share, such as 9831/10000."""
    part = None
    if not evidence.has_place:
        part = evidence.part_before
    roles: dict[PrintedNumber, tuple[LearnedColumn, ...]] = {}
    for column in evidence.columns:
        is_named = column.meaning in (Sense.METRIC, Sense.SETTING)
        if column in evidence.counting[:2] or not (is_named or evidence.is_unknown_metric(column)):
            continue
        name = column.name
        if part is not None and not has_part(name):
            name = f"{part}/{name}"
        roles[column] = (LearnedColumn(column.token, "value", name),)
        if column.is_pair:
            roles[column] += (LearnedColumn(column.token, "value_total"),)
    return roles


def learn_counter(line: PrintedLine, candidate: Candidate) -> LearnedShape | None:
    """The shape of lines that only count."""
    evidence = ShapeEvidence(line.columns, candidate.rows)
    column = counter_of(line)
    if column is None:
        return None
    if column.meaning is Sense.EPOCH:
        evidence.counting = _Counting(None, None, True)
        return _shape(line, {column: _counter_roles(column, "epoch")}, evidence)
    evidence.counting = _Counting(column, None, True)
    return _shape(line, {column: _counter_roles(column, "step")}, evidence)


class ShapeEvidence:
    """Lines of one shape, those of the first rank and of new places. ``counting`` are the columns that count."""

    def __init__(self, columns: Sequence[PrintedNumber], rows: Sequence[Row]) -> None:
        self.columns = columns
        self.rows = list(rows)
        self._keep_first_rank()
        self._drop_nested()
        self.counting = self._find_counting()
        self._drop_repeated()

    def numbers(self, column: PrintedNumber, of_pair: int = 0) -> list[float | int | None]:
        """The numbers of a column, or of the totals of one."""
        index = self.columns.index(column)
        return [row.numbers[index][of_pair] for row in self.rows]

    @property
    def has_place(self) -> bool:
        """Whether lines name a step, or an epoch that is a whole number."""
        step, epoch, _ = self.counting
        return step is not None or (epoch is not None and self.is_whole(epoch))

    def is_whole(self, column: PrintedNumber) -> bool:
        return all(type(number) is int and number >= 0 for number in self.numbers(column))

    def is_real(self, column: PrintedNumber) -> bool:
        return any(type(number) is float for number in self.numbers(column))

    def varies(self, column: PrintedNumber) -> bool:
        return len(set(self._known(column))) > 1

    def is_metric(self, column: PrintedNumber) -> bool:
        """Return whether a column with the name of a metric measures something: it varies, or is not finite."""
        return column.meaning is Sense.METRIC and (self.varies(column) or None in self.numbers(column))

    def is_constant_metric(self, column: PrintedNumber) -> bool:
        """Return whether a column with the name of a metric has the same real number in all lines."""
        return column.meaning is Sense.METRIC and self.is_real(column) and not self.varies(column)

    def is_unknown_metric(self, column: PrintedNumber) -> bool:
        """Return whether a column with an unknown name measures something: it varies, and is no other counter."""
        if column.meaning is not Sense.UNKNOWN or not column.name or column.is_pair or column in self.counting:
            return False
        return self.varies(column) and not (self.is_whole(column) and self.never_falls(column))

    def is_index(self, column: PrintedNumber) -> bool:
        """Return whether a column says which of several things a line is of."""
        is_number = column.meaning is Sense.UNKNOWN and self.is_whole(column) and self.varies(column)
        return is_number and not self.never_falls(column)

    def never_falls(self, column: PrintedNumber) -> bool:
        return all(later >= earlier for earlier, later in pairwise(self._known(column)))

    def begins_again(self, column: PrintedNumber) -> bool:
        """Return whether places begin again, or each is the end of an epoch."""
        return self._is_end(column) or not self.never_falls(column)

    def advances(self, count: str) -> bool:
        """Return whether a count rose from each line to the next."""
        values = [row.counts.get(count) for row in self.rows]
        return all(a is not None and b is not None and b > a for a, b in pairwise(values))

    @property
    def stride(self) -> int:
        """What the places of ``Epoch 2 [128/60000]`` have in common, as samples would; 0 if they surely count steps."""
        step, epoch, _ = self.counting
        if step is None or epoch is None or step.meaning is Sense.STEP or not step.is_pair or step.is_bar:
            return 0
        ends = self.numbers(step, 1)
        places = [place for place, end in zip(self.numbers(step), ends, strict=True) if place != end]
        return math.gcd(*(place for place in places if type(place) is int))

    def stands(self, count: str) -> bool:
        """Return whether a count was there and the same at all lines."""
        values = {row.counts.get(count) for row in self.rows}
        return len(values) == 1 and None not in values

    def advancing_count(self) -> str | None:
        """The count of other lines that rose from each line to the next; of several the one that rose most."""
        counts = [count for count in self.rows[-1].counts if count != NEWEST and self.advances(count)]
        first = self.rows[0].counts
        last = self.rows[-1].counts
        return max(counts, key=lambda count: last[count] - first[count], default=None)

    @property
    def part_before(self) -> str | None:
        """The part of the data that the lines before all of them name, if that is not the training."""
        parts = {row.part_before for row in self.rows}
        if len(parts) == 1 and parts <= HELD_OUT:
            return parts.pop()
        return None

    def _known(self, column: PrintedNumber) -> list[float | int]:
        return [number for number in self.numbers(column) if number is not None]

    def _keep_first_rank(self) -> None:
        column = next((column for column in self.columns if column.meaning is Sense.RANK), None)
        if column is not None and self.is_whole(column):
            ranks = self._known(column)
            self.rows = [row for row, rank in zip(self.rows, ranks, strict=True) if rank == min(ranks)]

    def _drop_nested(self) -> None:
        """Leave out bars of the same form with a smaller total: a validation within the training."""
        bar = next((column for column in self.columns if column.may_be_place), None)
        if bar is None or any(column.meaning is Sense.EPOCH for column in self.columns):
            return
        totals = self.numbers(bar, 1)
        largest = max((total for total in totals if total is not None), default=None)
        self.rows = [row for row, total in zip(self.rows, totals, strict=True) if total == largest]

    def _drop_repeated(self) -> None:
        """Leave out rows with the counters of the row before: other ranks, or a bar that is redrawn."""
        counters = [self.columns.index(column) for column in self.counting[:2] if column is not None]
        step = self.counting.step
        if not counters or (step is not None and self._is_end(step)):
            return
        rows = self.rows[:1]
        for row in self.rows[1:]:
            if any(row.numbers[index] != rows[-1].numbers[index] for index in counters):
                rows.append(row)
        self.rows = rows

    def _find_counting(self) -> _Counting:
        """Of several counters that agree the finer one is the step, and one of the whole training is better than a
        place."""
        epoch = next((column for column in self.columns if column.meaning is Sense.EPOCH), None)
        named_steps = [column for column in self.columns if column.meaning is Sense.STEP and self._grows(column)]
        if named_steps:
            step = max(named_steps, key=lambda column: (self._advance(column), not column.is_pair))
            return _Counting(step, epoch, True)
        places = [column for column in self.columns if column.may_be_place and self._is_place(column)]
        if places:
            step = places[0]
            return _Counting(step, epoch or self._epoch_before(step), epoch is not None or step.is_bar)
        if epoch is not None:
            return _Counting(None, epoch, True)
        bare = [column for column in self._leading() if self._grows(column) and self._has_stride(column)]
        if bare:
            return _Counting(bare[-1], self._epoch_before(bare[-1]), False)
        return _Counting(None, None, False)

    def _leading(self) -> list[PrintedNumber]:
        """The numbers without a name at the beginning."""
        return list(takewhile(lambda column: not column.name and not column.is_pair, self.columns))[:2]

    def _epoch_before(self, step: PrintedNumber) -> PrintedNumber | None:
        """The whole number before a place, as in ``3 [150/1251]`` and ``[1, 150]``: it rises only where the place
        begins again."""
        index = self.columns.index(step)
        if not index:
            return None
        column = self.columns[index - 1]
        if step.token - column.token > _NEAR_TOKENS or not self.is_whole(column):
            return None
        if column.meaning is not Sense.UNKNOWN or (column.name and column.name not in PARTS):
            return None
        lines = pairwise(zip(self._known(column), self._known(step), strict=True))
        if any(
            later < epoch or (later > epoch and next_place > place) for (epoch, place), (later, next_place) in lines
        ):
            return None
        return column

    def _is_place(self, column: PrintedNumber) -> bool:
        if self._is_end(column):
            return len(self.rows) > 1 and self.advancing_count() is not None
        return self._grows(column)

    def _is_end(self, column: PrintedNumber) -> bool:
        """Return whether each line is the end of an epoch: its place is its total."""
        return column.is_pair and self.is_whole(column) and self.numbers(column) == self.numbers(column, 1)

    def _grows(self, column: PrintedNumber) -> bool:
        """Return whether a column of whole numbers grows, or begins again now and then."""
        if not self.is_whole(column):
            return False
        places = self._known(column)
        if column.is_pair:
            totals = self.numbers(column, 1)
            if any(total is None or place > total for place, total in zip(places, totals, strict=True)):
                return False
        rises = sum(later > earlier for earlier, later in pairwise(places))
        falls = sum(later < earlier for earlier, later in pairwise(places))
        return rises > falls or (rises == falls > 0 and places[0] < places[-1])

    def _advance(self, column: PrintedNumber) -> float:
        return sum(max(0, later - earlier) for earlier, later in pairwise(self._known(column)))

    def _has_stride(self, column: PrintedNumber) -> bool:
        steps = {later - earlier for earlier, later in pairwise(self._known(column)) if later > earlier}
        return len(steps) == 1


def _counters(evidence: ShapeEvidence) -> dict[PrintedNumber, tuple[LearnedColumn, ...]]:
    """What the numbers of a line that count are."""
    roles: dict[PrintedNumber, tuple[LearnedColumn, ...]] = {}
    step, epoch, _ = evidence.counting
    if step is not None:
        roles[step] = _counter_roles(step, "step")
    if epoch is not None and evidence.is_whole(epoch):
        roles[epoch] = _counter_roles(epoch, "epoch")
    elif epoch is not None:
        roles[epoch] = (LearnedColumn(epoch.token, "epoch_value", "epoch"),)
    column = next((column for column in evidence.columns if column.meaning is Sense.RANK), None)
    if column is not None and evidence.is_whole(column):
        roles[column] = _counter_roles(column, "rank")
    return roles


def _counter_roles(column: PrintedNumber, role: Role) -> tuple[LearnedColumn, ...]:
    # The second number of a pair of ranks is the number of processes, which has no role.
    totals: Mapping[Role, Role] = {"step": "step_total", "epoch": "epoch_total"}
    counter = LearnedColumn(column.token, role)
    if not column.is_pair or role not in totals:
        return (counter,)
    return (counter, LearnedColumn(column.token, totals[role]))


def _shape(
    line: PrintedLine, roles: Mapping[PrintedNumber, tuple[LearnedColumn, ...]], evidence: ShapeEvidence
) -> LearnedShape:
    columns = tuple(role for column in line.columns for role in roles.get(column, ()))
    step, epoch, _ = evidence.counting
    restarts = step is not None and epoch is None and evidence.begins_again(step)
    return LearnedShape(
        line.text,
        columns,
        is_held_out=evidence.counting.is_held_out,
        restarts=restarts,
        may_nest=step is not None and step.may_be_place,
        stride=evidence.stride,
        is_apart=step is None and epoch is not None and evidence.stands(NEWEST),
        part=line.columns[-1].part,
    )
