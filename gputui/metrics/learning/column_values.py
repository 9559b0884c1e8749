"""The numbers of one column in several lines of a shape, and what they show by themselves.

In: the column of ``20/100`` in "Epoch 2 [20/100]", "Epoch 2 [40/100]", "Epoch 2 [60/100]". Out: whole numbers that
count up, each by 20, and never reach their total.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gputui.metrics.learning.candidates import Row
from gputui.metrics.learning.columns import PrintedNumber

Numbers = Sequence[float | int | None]


@dataclass(frozen=True, slots=True)
class ColumnValues:
    """A column of a shape with its numbers, those of the oldest line first.

    Attributes:
        numbers: One of each line, None where it is not finite.
        totals: The second number of each line; empty for a column that is no pair.
    """

    column: PrintedNumber
    numbers: Numbers
    totals: Numbers

    @classmethod
    def of_rows(cls, columns: Sequence[PrintedNumber], rows: Sequence[Row]) -> list[ColumnValues]:
        """The values of all columns of some lines, in their order."""
        values = []
        for index, column in enumerate(columns):
            numbers = [row.numbers[index][0] for row in rows]
            totals: Numbers = []
            if column.is_pair:
                totals = [row.numbers[index][1] for row in rows]
            values.append(cls(column, numbers, totals))
        return values

    @property
    def finite(self) -> list[float | int]:
        return [number for number in self.numbers if number is not None]

    @property
    def rises(self) -> list[float | int]:
        """By how much a number is larger than the one before, for each that is."""
        return [later - earlier for earlier, later in pairwise(self.finite) if later > earlier]

    @property
    def is_whole(self) -> bool:
        """Whether all are whole numbers from 0."""
        return all(type(number) is int and number >= 0 for number in self.numbers)

    @property
    def has_fraction(self) -> bool:
        """Whether one is printed as a real number."""
        return any(type(number) is float for number in self.numbers)

    @property
    def varies(self) -> bool:
        return len(set(self.finite)) > 1

    @property
    def never_falls(self) -> bool:
        return all(later >= earlier for earlier, later in pairwise(self.finite))

    @property
    def counts_up(self) -> bool:
        """Whether they are whole numbers that rise, though they may begin again now and then, and exceed no total."""
        if not self.is_whole:
            return False
        places = self.finite
        if any(total is None or place > total for place, total in zip(places, self.totals, strict=False)):
            return False
        rises = len(self.rises)
        falls = sum(later < earlier for earlier, later in pairwise(places))
        return rises > falls or (rises == falls > 0 and places[0] < places[-1])

    @property
    def is_at_total(self) -> bool:
        """Whether each number is its total, as in lines that are printed at the end of an epoch."""
        return self.column.is_pair and self.is_whole and self.numbers == self.totals
