"""Nulls that stand for NaN, and nulls of what was not measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gputui.store.metrics.stored_lines import NOT_METRICS, NULL_NAN, as_float

_LEAST_NUMBERS = 2  # one number may have been the first of a metric that is written seldom
# A script may invent names without end.
_MOST_NAMES = 500
_MOST_SHAPES = 32  # a script writes a handful of kinds of lines


class NullMeanings:
    """Tells the nulls of one rank's lines that stand for NaN, as orjson, pandas and JavaScript write it, from those
    of a value that was not measured.

    A null stands for NaN where its name had numbers before, in lines with the same other names, and where it is not
    a gap: no longer than twice the longest run of nulls that a number has ended.

    Attributes:
        _shapes: The names that had numbers together in a line.
        _counts: How many numbers each name had.
        _nulls: The nulls of each name since its last number.
        _longest: The longest run of nulls of each name that a number has ended.
        _usual: A line after which another one with the same names, and no null, shows nothing new; None if the next
            line may.
    """

    def __init__(self) -> None:
        self._shapes: set[frozenset[str]] = set()
        self._counts: dict[str, int] = {}
        self._nulls: dict[str, int] = {}
        self._longest: dict[str, int] = {}
        self._usual: Mapping[str, Any] | None = None

    def read(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take a line, and return it with NaN, in its stored form, for the nulls that stand for it.
        Cheap for a line without a null that has the names of the line before."""
        has_null = None in values.values()
        if self._usual is not None and not has_null and values.keys() == self._usual.keys():
            return values
        self._usual = None
        measured = frozenset(name for name, value in values.items() if as_float(value) is not None) - NOT_METRICS
        nulls = [name for name, value in values.items() if value is None and name not in NOT_METRICS]
        if len(self._shapes) < _MOST_SHAPES:
            self._shapes.add(measured)
        for name in measured:
            self._count_number(name)
        if not has_null and all(self._counts.get(name, 0) >= _LEAST_NUMBERS for name in measured):
            self._usual = values
        not_numbers = {name: NULL_NAN for name in nulls if self._is_nan(name, measured)}
        if not_numbers:
            return {**values, **not_numbers}
        return values

    def _count_number(self, name: str) -> None:
        if name not in self._counts and len(self._counts) >= _MOST_NAMES:
            return
        self._counts[name] = self._counts.get(name, 0) + 1
        if run := self._nulls.pop(name, 0):
            self._longest[name] = max(run, self._longest.get(name, 0))

    def _is_nan(self, name: str, measured: frozenset[str]) -> bool:
        """Count a null of a name in a line that measured others, and tell if it stands for NaN."""
        is_counted = name in self._counts
        if is_counted and not any(name in shape and measured <= shape for shape in self._shapes):
            # In lines like this one it never had a number.
            return False
        if name not in self._nulls and len(self._nulls) >= _MOST_NAMES:
            return False
        run = self._nulls[name] = self._nulls.get(name, 0) + 1
        return self._counts.get(name, 0) >= _LEAST_NUMBERS and run > 2 * self._longest.get(name, 0)


class NullReader:
    """The `NullMeanings` of each rank of a source. ``load`` returns its newest stored lines, oldest first, as (rank,
    values): it is called for the first line, and again after `forget`."""

    def __init__(self, load: Callable[[], Iterable[tuple[int | None, Mapping[str, Any]]]] = tuple) -> None:
        self._load = load
        self._ranks: dict[int | None, NullMeanings] | None = None

    def of(self, rank: int | None) -> NullMeanings:
        """The meanings of one rank's nulls. Raises what ``load`` raises."""
        if self._ranks is None:
            lines = self._load()
            self._ranks = {}
            for line_rank, values in lines:
                self.of(line_rank).read(values)
        meanings = self._ranks.get(rank)
        if meanings is None:
            meanings = self._ranks[rank] = NullMeanings()
        return meanings

    def forget(self) -> None:
        """Forget all lines, because the newest were not stored."""
        self._ranks = None
