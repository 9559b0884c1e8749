"""What several lines of one shape show: which number is the step, which are metrics, and whether that is sure.

In: the numbers of lines like "Epoch 2 [20/100] loss: 0.51 (0.60)". Out: the shape of all such lines, in which the
first number is an epoch, the pair a place in it with its total, and the third a metric; None while that is not sure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from gputui.metrics.learning.candidates import NEWEST, Candidate, Row, counter_of
from gputui.metrics.learning.column_values import ColumnValues
from gputui.metrics.learning.columns import PrintedLine, PrintedNumber
from gputui.metrics.learning.counter_columns import CounterColumns, find_counters
from gputui.metrics.learning.shapes import LearnedColumn, LearnedShape, Role
from gputui.metrics.learning.words import HELD_OUT, Sense, has_part

LEAST_ROWS = 3  # two differences, which show whether a counter is even
LEAST_ROWS_UNKNOWN_NAMES = 4  # names that say nothing need one more line as evidence
LEAST_ROWS_BESIDE_OTHERS = 2  # other lines have shown already that the program trains
# The second number of a pair of ranks is the number of processes, which has no role.
_TOTAL_ROLES: dict[Role, Role] = {"step": "step_total", "epoch": "epoch_total"}


class LogSoFar(NamedTuple):
    """What is known of the log: whether metrics, and those with steps of their own, were learned, and whether it has
    ended."""

    has_metrics: bool
    has_steps: bool
    is_over: bool


def learn(line: PrintedLine, candidate: Candidate, context: LogSoFar) -> tuple[LearnedShape, str | None] | None:
    """The shape of a candidate, if its lines are sure to hold metrics.

    Args:
        line: The newest of its lines.

    Returns:
        The shape, and the candidate whose count is the step of its lines; no candidate if learned lines give the step.
    """
    if len(candidate.rows) < LEAST_ROWS_BESIDE_OTHERS:
        return None
    evidence = gather(line.columns, candidate.rows)
    least_rows = _least_rows(evidence, context)
    if least_rows is None or len(evidence.rows) < least_rows:
        return None
    if evidence.counting.is_held_out and not context.has_steps:
        return None
    if candidate.is_crowded and evidence.counting.step is None:
        return None
    step_counter = None
    if not evidence.has_place:
        if any(map(evidence.is_index, line.columns)):
            return None
        if not context.has_steps:
            step_counter = _advancing_counter(evidence.rows)
        is_counted = step_counter is not None or (context.has_steps and _advances(evidence.rows, NEWEST))
        if not is_counted:
            return None
    roles = [role for column in line.columns for role in _roles(column, evidence)]
    return _shape(line, roles, evidence), step_counter


def learn_counter(line: PrintedLine, candidate: Candidate) -> LearnedShape | None:
    """The shape of lines that only count."""
    column = counter_of(line)
    if column is None:
        return None
    role: Role = "step"
    counting = CounterColumns(column, epoch=None, is_named=True)
    if column.meaning is Sense.EPOCH:
        role = "epoch"
        counting = CounterColumns(step=None, epoch=column, is_named=True)
    evidence = replace(gather(line.columns, candidate.rows), counting=counting)
    return _shape(line, _counter(column, role), evidence)


@dataclass(frozen=True, slots=True)
class ShapeEvidence:
    """The lines of one shape that show something, and which of their columns count.

    Attributes:
        rows: The lines of the first rank at new places, the oldest first.
        values: The numbers of their columns, in the order in which they are printed.
    """

    rows: Sequence[Row]
    values: Sequence[ColumnValues]
    counting: CounterColumns

    def values_of(self, column: PrintedNumber) -> ColumnValues:
        return next(values for values in self.values if values.column == column)

    @property
    def has_place(self) -> bool:
        """Whether lines name a step, or an epoch that is a whole number."""
        step, epoch, _ = self.counting
        return step is not None or (epoch is not None and self.values_of(epoch).is_whole)

    def is_metric(self, column: PrintedNumber) -> bool:
        """Return whether a column with the name of a metric measures something: it varies, or is not finite."""
        values = self.values_of(column)
        return column.meaning is Sense.METRIC and (values.varies or None in values.numbers)

    def is_constant_metric(self, column: PrintedNumber) -> bool:
        """Return whether a column with the name of a metric has the same real number in all lines."""
        values = self.values_of(column)
        return column.meaning is Sense.METRIC and values.has_fraction and not values.varies

    def is_unknown_metric(self, column: PrintedNumber) -> bool:
        """Return whether a column with an unknown name measures something: it varies, and is no other counter."""
        if column.meaning is not Sense.UNKNOWN or not column.name or column.is_pair or column in self.counting:
            return False
        values = self.values_of(column)
        return values.varies and not (values.is_whole and values.never_falls)

    def is_index(self, column: PrintedNumber) -> bool:
        """Return whether a column says which of several things a line is of: a class, a layer."""
        values = self.values_of(column)
        is_number = column.meaning is Sense.UNKNOWN and values.is_whole and values.varies
        return is_number and not values.never_falls

    @property
    def stride(self) -> int:
        """What the places of ``Epoch 2 [128/60000]`` have in common, as samples would; 0 if they surely count steps."""
        step, epoch, _ = self.counting
        if step is None or epoch is None or step.meaning is Sense.STEP or not step.is_pair or step.is_bar:
            return 0
        values = self.values_of(step)
        places = [place for place, total in zip(values.numbers, values.totals, strict=True) if place != total]
        return math.gcd(*(place for place in places if type(place) is int))

    @property
    def begins_again(self) -> bool:
        """Whether places begin again, or each is the end of an epoch, and no epoch is named."""
        step, epoch, _ = self.counting
        if step is None or epoch is not None:
            return False
        places = self.values_of(step)
        return places.is_at_total or not places.never_falls

    @property
    def is_apart(self) -> bool:
        """Whether lines that name an epoch alone came while no step was made."""
        step, epoch, _ = self.counting
        newest_steps = {row.counts.get(NEWEST) for row in self.rows}
        return step is None and epoch is not None and len(newest_steps) == 1 and None not in newest_steps

    @property
    def part_before(self) -> str | None:
        """The part of the data that the lines before all of them name, if that is not the training."""
        parts = {row.part_before for row in self.rows}
        if len(parts) == 1 and parts <= HELD_OUT:
            return parts.pop()
        return None


def gather(columns: Sequence[PrintedNumber], rows: Sequence[Row]) -> ShapeEvidence:
    """The columns that count in lines of a shape, and the lines without those that say nothing new."""
    outer_rows = _rows_of_largest_total(columns, _rows_of_first_rank(columns, rows))
    values = ColumnValues.of_rows(columns, outer_rows)
    counting = find_counters(values, others_advance=_advancing_counter(outer_rows) is not None)
    new_rows = _rows_at_new_places(values, outer_rows, counting)
    if len(new_rows) < len(outer_rows):
        values = ColumnValues.of_rows(columns, new_rows)
    return ShapeEvidence(new_rows, values, counting)


def _rows_of_first_rank(columns: Sequence[PrintedNumber], rows: Sequence[Row]) -> Sequence[Row]:
    """The lines of the lowest rank; all, if they name none."""
    column = next((column for column in columns if column.meaning is Sense.RANK), None)
    if column is None:
        return rows
    ranks = ColumnValues.of_rows(columns, rows)[columns.index(column)]
    if not ranks.is_whole:
        return rows
    lowest = min(ranks.finite)
    return [row for row, rank in zip(rows, ranks.numbers, strict=True) if rank == lowest]


def _rows_of_largest_total(columns: Sequence[PrintedNumber], rows: Sequence[Row]) -> Sequence[Row]:
    """The lines without bars of the same form that have a smaller total: a validation within the training."""
    bar = next((column for column in columns if column.may_be_place), None)
    if bar is None or any(column.meaning is Sense.EPOCH for column in columns):
        return rows
    totals = ColumnValues.of_rows(columns, rows)[columns.index(bar)].totals
    largest = max((total for total in totals if total is not None), default=None)
    return [row for row, total in zip(rows, totals, strict=True) if total == largest]


def _rows_at_new_places(values: Sequence[ColumnValues], rows: Sequence[Row], counting: CounterColumns) -> Sequence[Row]:
    """The lines without those that count as the line before: other ranks, or a bar that is redrawn. Places that are
    all at their total are not compared."""
    counters = [index for index, item in enumerate(values) if item.column in (counting.step, counting.epoch)]
    if not counters or any(item.is_at_total for item in values if item.column == counting.step):
        return rows
    new_rows = list(rows[:1])
    for row in rows[1:]:
        if any(row.numbers[index] != new_rows[-1].numbers[index] for index in counters):
            new_rows.append(row)
    return new_rows


def _advances(rows: Sequence[Row], counter: str) -> bool:
    """Return whether a count of other lines rose from each line to the next."""
    counts = [row.counts.get(counter) for row in rows]
    return all(a is not None and b is not None and b > a for a, b in pairwise(counts))


def _advancing_counter(rows: Sequence[Row]) -> str | None:
    """The candidate that only counts and did so from each line to the next; of several the one that rose most."""
    first = rows[0].counts
    last = rows[-1].counts
    advancing = [counter for counter in last if counter != NEWEST and _advances(rows, counter)]
    return max(advancing, key=lambda counter: last[counter] - first[counter], default=None)


def _least_rows(evidence: ShapeEvidence, context: LogSoFar) -> int | None:
    """How many lines make sure what they say; None if they measure nothing."""
    is_named = evidence.counting.is_named
    columns = [values.column for values in evidence.values]
    if any(map(evidence.is_metric, columns)):
        is_familiar = context.has_metrics or (context.is_over and evidence.has_place)
        if is_familiar and (is_named or not evidence.has_place):
            return LEAST_ROWS_BESIDE_OTHERS
        return LEAST_ROWS
    if not is_named:
        return None
    if evidence.has_place and context.has_metrics and any(map(evidence.is_constant_metric, columns)):
        # Beside a training, a validation that stands still.
        return LEAST_ROWS
    unknown = filter(evidence.is_unknown_metric, columns)
    if any(evidence.values_of(column).has_fraction for column in unknown):
        return LEAST_ROWS_UNKNOWN_NAMES
    return None


def _roles(column: PrintedNumber, evidence: ShapeEvidence) -> Sequence[LearnedColumn]:
    """What a number of a line is: a counter, a rank, a metric or setting with its name, or nothing."""
    is_whole = evidence.values_of(column).is_whole
    if column == evidence.counting.step:
        return _counter(column, "step")
    if column == evidence.counting.epoch:
        if is_whole:
            return _counter(column, "epoch")
        return [LearnedColumn(column.token, "epoch_value", "epoch")]
    if column.meaning is Sense.RANK:
        first = next(values for values in evidence.values if values.column.meaning is Sense.RANK)
        if is_whole and column == first.column:
            return _counter(column, "rank")
        return []
    if column.meaning in (Sense.METRIC, Sense.SETTING) or evidence.is_unknown_metric(column):
        return _metric(column, evidence)
    return []


def _counter(column: PrintedNumber, role: Role) -> Sequence[LearnedColumn]:
    """The roles of a number that counts, and of its total."""
    counter = LearnedColumn(column.token, role)
    if not column.is_pair or role not in _TOTAL_ROLES:
        return [counter]
    return [counter, LearnedColumn(column.token, _TOTAL_ROLES[role])]


def _metric(column: PrintedNumber, evidence: ShapeEvidence) -> Sequence[LearnedColumn]:
    """The roles of a metric, with the part of the data in its name; a pair is a share, such as 9831/10000."""
    name = column.name
    part = None
    if not evidence.has_place:
        part = evidence.part_before
    if part is not None and not has_part(name):
        name = f"{part}/{name}"
    metric = LearnedColumn(column.token, "value", name)
    if column.is_pair:
        return [metric, LearnedColumn(column.token, "value_total")]
    return [metric]


def _shape(line: PrintedLine, roles: Sequence[LearnedColumn], evidence: ShapeEvidence) -> LearnedShape:
    step = evidence.counting.step
    return LearnedShape(
        line.text,
        tuple(roles),
        is_held_out=evidence.counting.is_held_out,
        restarts=evidence.begins_again,
        may_nest=step is not None and step.may_be_place,
        stride=evidence.stride,
        is_apart=evidence.is_apart,
        part=line.columns[-1].part,
    )
