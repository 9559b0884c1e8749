"""The orders and the filter of the table of runs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gputui.ui.tui.data.snapshot import RunRow
from gputui.ui.tui.layout.words import run_sign


class RunOrder(NamedTuple):
    """A sort order and the letter that chooses it. Runs whose ``key`` is None go to the end."""

    name: str
    letter: str
    words: str
    key: Callable[[RunRow], float | str | None] | None


def _loss(row: RunRow) -> float | None:
    loss = row.progress.loss
    return None if loss is None or not math.isfinite(loss) else loss


def _negated(value: float | None) -> float | None:
    return None if value is None else -value


ORDERS: tuple[RunOrder, ...] = (
    RunOrder("state", "s", "", None),
    RunOrder("newest", "n", "newest first", lambda row: -row.run.sequence),
    RunOrder("name", "r", "by name", lambda row: row.run.run_id),
    RunOrder("loss", "l", "by loss", _loss),
    RunOrder("left", "e", "by time left", lambda row: row.progress.seconds_left),
    RunOrder("pace", "p", "fastest first", lambda row: _negated(row.progress.steps_per_second)),
    RunOrder(
        "lost",
        "f",
        "by what failures cost",
        lambda row: _negated(None if row.cost is None else row.cost.lost_seconds or 0.0),
    ),
)
"""All orders, in the order in which a key steps through them. The first keeps that of the snapshot: active runs, the
queue, ended runs."""


def order_named(name: str) -> RunOrder:
    """The order of this name; the first for an unknown name."""
    return next((order for order in ORDERS if order.name == name), ORDERS[0])


def order_of_letter(letter: str) -> RunOrder | None:
    """The order that a letter chooses."""
    return next((order for order in ORDERS if order.letter == letter), None)


def next_order(name: str) -> RunOrder:
    """The order after the one of this name."""
    return ORDERS[(ORDERS.index(order_named(name)) + 1) % len(ORDERS)]


def in_order(rows: Sequence[RunRow], name: str) -> list[RunRow]:
    """The rows sorted; runs that lack the value stay in their order at the end."""
    key = order_named(name).key
    if key is None:
        return list(rows)
    known = [(value, row) for row in rows if (value := key(row)) is not None]
    known.sort(key=lambda pair: pair[0])
    ids = {row.run.run_id for _, row in known}
    return [row for _, row in known] + [row for row in rows if row.run.run_id not in ids]


def matching(rows: Sequence[RunRow], filter_text: str) -> list[RunRow]:
    """The rows that contain every word of the filter in their id, name, ``#tags``, note, state, profile or reason."""
    words = filter_text.lower().split()
    if not words:
        return list(rows)
    return [row for row in rows if all(word in _haystack(row) for word in words)]


def fold_trials(rows: Sequence[RunRow]) -> tuple[list[RunRow], Mapping[str, Sequence[RunRow]]]:
    """Fold the ended trials of each study into the first of them, if there are several.

    Returns the remaining rows, and by the run of each such row the trials that it summarises.
    """
    trials: defaultdict[str, list[RunRow]] = defaultdict(list)
    for row in rows:
        if row.run.study_id is not None and row.run.state.is_over:
            trials[row.run.study_id].append(row)
    folded = {ended[0].run.run_id: ended for ended in trials.values() if len(ended) > 1}
    hidden = {row.run.run_id for ended in folded.values() for row in ended[1:]}
    return [row for row in rows if row.run.run_id not in hidden], folded


def _haystack(row: RunRow) -> str:
    run = row.run
    words = (run.run_id, run.name, run.profile, run_sign(run.state).word, run.reason or "", run.waiting_for or "")
    return " ".join((*words, *(f"#{tag}" for tag in run.tags), run.note or "")).lower()
