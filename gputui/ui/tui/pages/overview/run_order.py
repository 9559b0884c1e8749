"""The rows of the table of runs: their orders, the filter, and studies in place of their trials."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct

from gputui.ui.tui.data.snapshot import RunRow, StudyRow
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
    RunOrder("lost", "f", "by what failures cost", lambda row: _negated(row.cost.lost_seconds if row.cost else None)),
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


class StudyEntry(Struct, frozen=True):
    """A study in the table of runs: its trials that do not run now, and its progress while it is active."""

    study_id: str
    trials: tuple[RunRow, ...] = ()
    study: StudyRow | None = None


Entry = RunRow | StudyEntry
"""A row of the table of runs."""


def entry_id(entry: Entry) -> str:
    """The identity of a row: a run's id, or ``study <id>``."""
    return f"study {entry.study_id}" if isinstance(entry, StudyEntry) else entry.run.run_id


def with_studies(rows: Sequence[RunRow], studies: Sequence[StudyRow]) -> list[Entry]:
    """The rows with one for each active study, and for each other study with several ended trials, above the trials
    that run now; its other trials are folded into it."""
    active = {study.study_id: study for study in studies}
    idle: defaultdict[str, list[RunRow]] = defaultdict(list)
    for row in rows:
        study_id = row.run.study_id
        if study_id is not None and (row.run.state.is_over or (study_id in active and row.run.state == "queued")):
            idle[study_id].append(row)
    folded = {study_id for study_id, trials in idle.items() if len(trials) > 1} | active.keys()
    entries: list[Entry] = []
    shown: set[str] = set()
    for row in rows:
        study_id = row.run.study_id
        if study_id is None or study_id not in folded:
            entries.append(row)
            continue
        if study_id not in shown:
            shown.add(study_id)
            entries.append(StudyEntry(study_id, tuple(idle[study_id]), active.get(study_id)))
        if row not in idle[study_id]:
            entries.append(row)
    return [*(StudyEntry(each, (), study) for each, study in active.items() if each not in shown), *entries]


def _haystack(row: RunRow) -> str:
    run = row.run
    words = (run.run_id, run.name, run.profile, run_sign(run.state).word, run.reason or "", run.waiting_for or "")
    return " ".join((*words, *(f"#{tag}" for tag in run.tags), run.note or "")).lower()
