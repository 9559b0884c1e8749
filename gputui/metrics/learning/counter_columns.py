"""Which numbers of a shape count the steps and the epochs.

In: the numbers of "Epoch 2 [20/100] loss: 0.51" in several lines. Out: the pair is the step, the first number the
epoch, and the word before it says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import NamedTuple

from gputui.metrics.learning.column_values import ColumnValues
from gputui.metrics.learning.columns import PrintedNumber
from gputui.metrics.learning.words import HELD_OUT, PARTS, Sense

# The tokens between an epoch and the place in it: "3 [ 150/1251".
_NEAR_TOKENS = 4
# An epoch and a step: the most numbers that count without a name at the beginning of a line.
_BARE_COUNTERS = 2


class CounterColumns(NamedTuple):
    """The columns that count; ``is_named``: their names say so."""

    step: PrintedNumber | None
    epoch: PrintedNumber | None
    is_named: bool

    @property
    def is_held_out(self) -> bool:
        """Whether the words before a place say that it is one of a validation."""
        return self.step is not None and self.step.is_pair and self.step.part in HELD_OUT


def find_counters(values: Sequence[ColumnValues], *, others_advance: bool) -> CounterColumns:
    """The columns that count: named steps before places of a total, epochs alone, and bare numbers.

    Of several steps that agree the finer one is taken, and one of the whole training rather than a place.

    Args:
        values: The numbers of the shape's columns, in the order in which they are printed.
        others_advance: A count of other lines rose from each of these lines to the next.
    """
    epochs = [item.column for item in values if item.column.meaning is Sense.EPOCH]
    epoch = next(iter(epochs), None)
    named_steps = [item for item in values if item.column.meaning is Sense.STEP and item.counts_up]
    if named_steps:
        step = max(named_steps, key=lambda item: (sum(item.rises), not item.column.is_pair))
        return CounterColumns(step.column, epoch, is_named=True)
    place = next((item for item in values if _is_place(item, others_advance)), None)
    if place is not None:
        is_named = epoch is not None or place.column.is_bar
        return CounterColumns(place.column, epoch or _epoch_before(values, place), is_named)
    if epoch is not None:
        return CounterColumns(step=None, epoch=epoch, is_named=True)
    leading = takewhile(lambda item: not item.column.name and not item.column.is_pair, values)
    bare = [item for item in list(leading)[:_BARE_COUNTERS] if item.counts_up and len(set(item.rises)) == 1]
    if bare:
        return CounterColumns(bare[-1].column, _epoch_before(values, bare[-1]), is_named=False)
    return CounterColumns(step=None, epoch=None, is_named=False)


def _is_place(values: ColumnValues, others_advance: bool) -> bool:
    """Return whether a pair is a place and its total: ``20/100``; at its total, only where other lines count."""
    if not values.column.may_be_place:
        return False
    if values.is_at_total:
        return len(values.numbers) > 1 and others_advance
    return values.counts_up


def _epoch_before(values: Sequence[ColumnValues], step: ColumnValues) -> PrintedNumber | None:
    """The whole number before a place, as in ``3 [150/1251]`` and ``[1, 150]``, that rises only where the place begins
    again."""
    index = values.index(step)
    if not index:
        return None
    epoch = values[index - 1]
    column = epoch.column
    if step.column.token - column.token > _NEAR_TOKENS or not epoch.is_whole:
        return None
    if column.meaning is not Sense.UNKNOWN or (column.name and column.name not in PARTS):
        return None
    for (number, place), (next_number, next_place) in pairwise(zip(epoch.finite, step.finite, strict=True)):
        if next_number < number or (next_number > number and next_place > place):
            return None
    return column
