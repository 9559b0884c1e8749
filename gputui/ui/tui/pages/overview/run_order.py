"""The rows of the table of runs: their orders, the filter, and studies in place of their trials."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct

from gputui.ui.tui.layout.lists import RowOrder
from gputui.ui.views.snapshot import RunRow, StudyRow
from gputui.ui.views.words import sign_of


def _loss(row: RunRow) -> float | None:
    loss = row.progress.loss
    if loss is None or not math.isfinite(loss):
        return None
    return loss


def _negated(value: float | None) -> float | None:
    if value is None:
        return None
    return -value


def _lost_seconds(row: RunRow) -> float | None:
    if row.cost is None:
        return None
    return row.cost.lost_seconds


ORDERS: tuple[RowOrder[RunRow], ...] = (
    RowOrder("state", "s", "", key=None),
    RowOrder("newest", "n", "newest first", lambda row: -row.run.sequence),
    RowOrder("name", "r", "by name", lambda row: row.run.run_id),
    RowOrder("loss", "l", "by loss", _loss),
    RowOrder("left", "e", "by time left", lambda row: row.progress.seconds_left),
    RowOrder("pace", "p", "fastest first", lambda row: _negated(row.progress.steps_per_second)),
    RowOrder("lost", "f", "by what failures cost", lambda row: _negated(_lost_seconds(row))),
)
"""All orders, in the order in which a key steps through them. The first keeps that of the snapshot: active runs, the
queue, ended runs."""


class StudyEntry(Struct, frozen=True):
    """A study in the table of runs.

    Attributes:
        trials: those that do not run now.
        study: its progress; None once it is over.
    """

    study_id: str
    trials: tuple[RunRow, ...] = ()
    study: StudyRow | None = None


Entry = RunRow | StudyEntry
"""A row of the table of runs."""


def entry_id(entry: Entry) -> str:
    """The identity of a row: a run's id, or ``study <id>``."""
    if isinstance(entry, StudyEntry):
        return f"study {entry.study_id}"
    return entry.run.run_id


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
    listed: set[str] = set()
    for row in rows:
        study_id = row.run.study_id
        if study_id is None or study_id not in folded:
            entries.append(row)
            continue
        if study_id not in listed:
            listed.add(study_id)
            entries.append(StudyEntry(study_id, tuple(idle[study_id]), active.get(study_id)))
        if row not in idle[study_id]:
            entries.append(row)
    without_trials = [StudyEntry(study_id, (), study) for study_id, study in active.items() if study_id not in listed]
    return [*without_trials, *entries]


def entry_words(entry: Entry) -> str:
    """The words that a filter searches: id, name, ``#tags``, note, state, profile and the reason of its end; of a study
    its id. What a run waits for names other runs."""
    if isinstance(entry, StudyEntry):
        return entry.study_id
    run = entry.run
    texts = (run.run_id, run.name, run.profile, sign_of(run).word, run.reason or "")
    return " ".join((*texts, *(f"#{tag}" for tag in run.tags), run.note or ""))
