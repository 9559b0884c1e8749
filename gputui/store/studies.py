"""Studies, their trials and the values at rungs, now or at a past moment.

Every reader takes ``at`` (UTC unix seconds; None is now) and a connection that may be read-only. Raises sqlite3.Error.
"""

from __future__ import annotations

import difflib
import json
import math
import sqlite3
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from gputui.store import json_columns

SECONDS_PER_HOUR = 3600.0


class StudyState(StrEnum):
    """Where a study is. ``stopping``: nothing new starts, and its trials are asked to stop; ``unknown``: the store has
    a word that this gputui does not know."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, _value: object) -> StudyState:
        return cls.UNKNOWN

    @property
    def is_over(self) -> bool:
        return self in (StudyState.FINISHED, StudyState.STOPPED, StudyState.FAILED)

    @property
    def needs_agent(self) -> bool:
        """Whether its process is to be there, which the agent starts."""
        return self in (StudyState.RUNNING, StudyState.STOPPING)


class TrialState(StrEnum):
    """Where a trial is. ``infeasible``: the point does not fit this machine, or a constraint; ``stopped``: by a person
    or a spent budget; ``unknown``: the store has a word that this gputui does not know, and its run tells more."""

    ENQUEUED = "enqueued"
    LAUNCHING = "launching"
    RUNNING = "running"
    PRUNING = "pruning"
    STOPPING = "stopping"
    COMPLETE = "complete"
    PRUNED = "pruned"
    INFEASIBLE = "infeasible"
    FAILED = "failed"
    STOPPED = "stopped"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, _value: object) -> TrialState:
        return cls.UNKNOWN

    @property
    def is_over(self) -> bool:
        return self in _VERDICTS


_VERDICTS = frozenset(
    {TrialState.COMPLETE, TrialState.PRUNED, TrialState.INFEASIBLE, TrialState.FAILED, TrialState.STOPPED}
)


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """A study. ``spec_json`` is what its file resolved to (`gputui.studies.spec`), ``source`` the file's text.
    ``reason`` is why it ended or pauses. Times are UTC unix seconds."""

    study_id: str
    sequence: int
    name: str
    profile: str
    state: StudyState
    reason: str | None
    spec_json: str
    source: str
    created_at: float
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One point of a study. ``number`` counts from 0; ``params`` are the tuned values alone; ``values`` has one value
    per objective, empty while unknown or withheld; ``constraints`` are at most 0 where kept. ``rung`` is the last one
    that was passed. ``starts``: how often a run was asked for, by ``command_id`` last. ``sampler`` is what the sampler
    remembers of it."""

    study_id: str
    number: int
    run_id: str | None
    state: TrialState
    origin: str
    params: Mapping[str, Any]
    rung: int | None
    values: tuple[float, ...]
    constraints: tuple[float, ...]
    reason: str | None
    parent: int | None
    generation: int | None
    starts: int
    command_id: int | None
    sampler: Mapping[str, Any]
    created_at: float
    ended_at: float | None

    @property
    def value(self) -> float | None:
        """That of the first objective."""
        return self.values[0] if self.values else None


@dataclass(frozen=True, slots=True)
class RungValue:
    """What a trial had reached at a rung, with the step and the attempt that passed it. ``value`` is None if it was
    no number."""

    number: int
    rung: int
    step: int
    value: float | None
    attempt: int
    at: float


class StudyNotFoundError(LookupError):
    """No study goes by this name; the text is one line."""


_STUDIES = "SELECT study_id, sequence, name, profile, state, reason, spec, source, created_at, ended_at FROM studies"
_TRIALS = (
    "SELECT study_id, number, run_id, state, origin, params, rung, value, objective_values, constraint_values, reason, "
    "parent, generation, starts, command_id, sampler, created_at, ended_at FROM trials"
)


def read_studies(connection: sqlite3.Connection, at: float | None = None) -> list[StudyRecord]:
    """Every study, newest first."""
    rows = connection.execute(f"{_STUDIES} WHERE ? IS NULL OR created_at <= ? ORDER BY sequence DESC", (at, at))
    found = [_study(row) for row in rows.fetchall()]
    return found if at is None else [_study_at(connection, one, at) for one in found]


def get_study(connection: sqlite3.Connection, study_id: str, at: float | None = None) -> StudyRecord | None:
    """The study of this id; None if there is none, or was none."""
    row = connection.execute(f"{_STUDIES} WHERE study_id = ?", (study_id,)).fetchone()
    found = None if row is None else _study(row)
    if found is None or at is None:
        return found
    return None if found.created_at > at else _study_at(connection, found, at)


def find_study(connection: sqlite3.Connection, wanted: str | None, at: float | None = None) -> StudyRecord:
    """The study that ``wanted`` means: its id, else the newest of that name, the newest of all for None. Raises
    StudyNotFoundError."""
    known = read_studies(connection, at)
    if wanted is None and known:
        return known[0]
    for one in known:
        if one.study_id == wanted:
            return one
    for one in known:
        if one.name == wanted:
            return one
    words = list(dict.fromkeys(word for one in known for word in (one.study_id, one.name)))
    near = difflib.get_close_matches(wanted or "", words, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "gputui studies lists them"
    raise StudyNotFoundError(f"no study {wanted!r}; {hint}" if wanted else "no study yet; gputui study run begins one")


def read_trials(connection: sqlite3.Connection, study_id: str, at: float | None = None) -> list[TrialRecord]:
    """The trials of a study in the order of their numbers."""
    rows = connection.execute(
        f"{_TRIALS} WHERE study_id = ? AND (? IS NULL OR created_at <= ?) ORDER BY number", (study_id, at, at)
    )
    found = [_trial(row) for row in rows.fetchall()]
    if at is None:
        return found
    begun: dict[int, tuple[str, float | None]] = {
        number: (run_id, started_at)
        for number, run_id, started_at in connection.execute(
            "SELECT r.trial, r.run_id, (SELECT min(a.created_at) FROM attempts AS a WHERE a.run_id = r.run_id) "
            "FROM runs AS r WHERE r.study_id = ? AND r.created_at <= ? ORDER BY r.sequence",
            (study_id, at),
        ).fetchall()
    }
    passed = {one.number: one.rung for one in read_rungs(connection, study_id, at)}
    return [_trial_at(one, begun.get(one.number), passed.get(one.number), at) for one in found]


class TrialReader:
    """Reads the trials of a study again and again: those that are over once, so that a look costs what goes on and not
    what there was. Of one that is over only its run may change, which may be removed; that is not noticed."""

    def __init__(self, connection: sqlite3.Connection, study_id: str) -> None:
        self._connection = connection
        self._study_id = study_id
        self._known: list[TrialRecord] = []

    def read(self) -> list[TrialRecord]:
        """The trials in the order of their numbers, which count from 0 without a gap."""
        unread = (
            "number >= ? OR number IN (SELECT value FROM json_each(?)) OR state NOT IN (SELECT value FROM json_each(?))"
        )
        going_on = [one.number for one in self._known if not one.state.is_over]
        verdicts = json.dumps(sorted(_VERDICTS))
        rows = self._connection.execute(
            f"{_TRIALS} WHERE study_id = ? AND ({unread}) ORDER BY number",
            (self._study_id, len(self._known), json.dumps(going_on), verdicts),
        )
        for one in map(_trial, rows.fetchall()):
            self._known[one.number : one.number + 1] = [one]
        return list(self._known)


def read_rungs(
    connection: sqlite3.Connection, study_id: str, at: float | None = None, *, numbers: Collection[int] | None = None
) -> list[RungValue]:
    """The values at rungs in the order of trials and rungs, of some trials or of all."""
    if numbers is not None:
        some = connection.execute(
            "SELECT number, rung, step, value, attempt, at FROM trial_rungs WHERE study_id = ? "
            "AND number IN (SELECT value FROM json_each(?)) AND (? IS NULL OR at <= ?) ORDER BY number, rung",
            (study_id, json.dumps(list(numbers)), at, at),
        )
        return [RungValue(*row) for row in some.fetchall()]
    rows = connection.execute(
        "SELECT number, rung, step, value, attempt, at FROM trial_rungs WHERE study_id = ? AND (? IS NULL OR at <= ?) "
        "ORDER BY number, rung",
        (study_id, at, at),
    )
    return [RungValue(*row) for row in rows.fetchall()]


def study_gpu_hours(connection: sqlite3.Connection, study_id: str, now: float) -> float:
    """What all runs of a study took up to ``now`` (UTC unix seconds), those that were removed included; 0 on the
    CPU. The time in which trials share a GPU counts once."""
    row = connection.execute(
        "WITH stays AS (SELECT g.value AS gpu, a.started_at AS begin, min(coalesce(a.ended_at, ?1), ?1) AS end "
        "  FROM runs AS r JOIN attempts AS a USING (run_id), json_each(iif(json_valid(a.gpus), a.gpus, '[]')) AS g "
        "  WHERE r.study_id = ?2 AND a.started_at <= ?1), "
        "behind AS (SELECT begin, end, coalesce(max(end) OVER (PARTITION BY gpu ORDER BY begin, end "
        "  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), begin) AS covered FROM stays) "
        "SELECT coalesce(sum(max(0, end - max(begin, covered))), 0) "
        "+ coalesce((SELECT removed_gpu_seconds FROM studies WHERE study_id = ?2), 0) FROM behind",
        (now, study_id),
    ).fetchone()
    return float(row[0]) / SECONDS_PER_HOUR


def study_wall_seconds(connection: sqlite3.Connection, study_id: str, now: float) -> float:
    """How long a study was running or stopping up to ``now`` (UTC unix seconds): not while it was paused or over."""
    moves = connection.execute(
        "SELECT at, to_state FROM study_moves WHERE study_id = ? AND at <= ? ORDER BY move_id", (study_id, now)
    ).fetchall()
    ends = [at for at, _ in moves[1:]] + [now]
    goes_on = (StudyState.RUNNING, StudyState.STOPPING)
    return math.fsum(max(0.0, end - at) for (at, state), end in zip(moves, ends, strict=True) if state in goes_on)


def studies_in(connection: sqlite3.Connection, states: tuple[StudyState, ...]) -> list[str]:
    """The ids of the studies in any of these states, oldest first."""
    marks = ", ".join("?" * len(states))
    rows = connection.execute(
        f"SELECT study_id FROM studies WHERE state IN ({marks}) ORDER BY sequence",  # noqa: S608 - marks only
        states,
    )
    return [row[0] for row in rows.fetchall()]


def _study(row: Any) -> StudyRecord:
    return StudyRecord(*[*row[:4], StudyState(row[4]), *row[5:]])


def _trial(row: Any) -> TrialRecord:
    values = () if row[7] is None else tuple(json_columns.items(row[8])) or (row[7],)
    reported = [json_columns.mapping(row[5]), row[6], values, tuple(json_columns.items(row[9]))]
    return TrialRecord(
        *[*row[:3], TrialState(row[3]), row[4], *reported, *row[10:15], json_columns.mapping(row[15]), *row[16:]]
    )


def _study_at(connection: sqlite3.Connection, study: StudyRecord, at: float) -> StudyRecord:
    row = connection.execute(
        "SELECT to_state, cause, at FROM study_moves WHERE study_id = ? AND at <= ? ORDER BY move_id DESC LIMIT 1",
        (study.study_id, at),
    ).fetchone()
    if row is None:
        return replace(study, state=StudyState.RUNNING, reason=None, ended_at=None)
    state = StudyState(row[0])
    return replace(
        study,
        state=state,
        reason=None if state is StudyState.RUNNING else row[1],
        ended_at=row[2] if state.is_over else None,
    )


def _trial_at(trial: TrialRecord, begun: tuple[str, float | None] | None, rung: int | None, at: float) -> TrialRecord:
    if trial.ended_at is not None and trial.ended_at <= at:
        return trial
    run_id, started_at = begun or (None, None)
    if started_at is not None and started_at <= at:
        state = TrialState.RUNNING
    elif run_id is None and trial.origin == "enqueued":
        state = TrialState.ENQUEUED
    else:
        state = TrialState.LAUNCHING
    return replace(trial, run_id=run_id, state=state, rung=rung, values=(), constraints=(), reason=None, ended_at=None)


def expected_seconds(connection: sqlite3.Connection, profile: str, params: Mapping[str, Any]) -> float | None:
    """How long a run of a profile with these parameters usually takes: the median of its newest runs that succeeded;
    None if there is none."""
    found: list[float] = []
    rows = connection.execute(
        "SELECT params, ended_at - started_at FROM runs WHERE profile = ? AND state = 'succeeded' "
        "AND started_at IS NOT NULL ORDER BY sequence DESC LIMIT 200",
        (profile,),
    )
    for text, seconds in rows:
        given = json_columns.mapping(text)
        if all(given.get(name) == value for name, value in params.items()):
            found.append(seconds)
    return statistics.median(found) if found else None
