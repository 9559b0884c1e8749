"""Studies, trials and values at rungs, now or at a past time. All readers raise sqlite3.Error."""

from __future__ import annotations

import difflib
import itertools
import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.errors import ExplainedError
from gputui.store.rows import records

SECONDS_PER_HOUR = 3600.0

OUTSIDE = "outside"
"""The origin of a trial that another process than gputui asked Optuna for, and runs."""


class StudyState(StrEnum):
    """The state of a study. ``stopping``: no trial starts, and running ones are asked to stop;
    ``unknown``: any other stored word."""

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
        """True if the agent must keep its process running."""
        return self in (StudyState.RUNNING, StudyState.STOPPING)


class TrialState(StrEnum):
    """The state of a trial. ``infeasible``: the point violates a constraint or does not fit this
    machine; ``stopped``: by a person or a spent budget; ``unknown``: any other stored word."""

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

    @property
    def word(self) -> str:
        """The state as people read it."""
        if self is TrialState.COMPLETE:
            return "done"
        return self.value


_VERDICTS = frozenset(
    {TrialState.COMPLETE, TrialState.PRUNED, TrialState.INFEASIBLE, TrialState.FAILED, TrialState.STOPPED}
)


TrialWish = Literal["keep", "prune"]
"""What a person wants of a trial: never to be cut short, or to be cut short now."""


class StudyRecord(Struct, frozen=True):
    """A study. Times are UTC unix seconds.

    Attributes:
        sequence: The order in which studies were launched.
        reason: Why it ended or is paused.
        spec_json: The resolved specification (`gputui.studies.spec`).
        source: The text of its file.
        milestone: The last one at which a population was compared.
        importances: The fields of an `Importance` for each objective and tuned parameter.
        problem: A sentence while its process fails again and again, else None.
    """

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
    milestone: int = 0
    importances: tuple[Mapping[str, Any], ...] = ()
    problem: str | None = None

    @property
    def remark(self) -> str:
        """Its reason and its problem."""
        return "; ".join(filter(None, (self.reason, self.problem)))

    def importances_for(self, metric: str) -> list[Importance]:
        """Parameters by their importance for an objective, the most important first."""
        return [Importance(**fields) for fields in self.importances if fields["objective"] == metric]


class Importance(Struct, frozen=True):
    """The share (0 to 1) of a tuned parameter in what makes trials good by an objective."""

    objective: str
    name: str
    share: float


class TrialRecord(Struct, frozen=True):
    """One trial of a study.

    Attributes:
        number: Counts from 0.
        run_id: None before its first launch, and for a trial that another process runs.
        origin: Who proposed it.
        params: The tuned values only.
        rung: The last one passed.
        values: One value per objective, empty while unknown or withheld.
        constraints: Satisfied if at most 0.
        parent: In a population, the trial that it continues; else None.
        generation: In a population, the milestone at which it took the place of another; else None.
        starts: How many launch commands it had.
        command_id: The last of its launch commands, None before the first.
        population: What a member keeps of its lineage.
        request: What a person wants of it.
        latest_value: The trial's value at its last rung.
    """

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
    population: Mapping[str, Any]
    created_at: float
    ended_at: float | None
    request: TrialWish | None = None
    latest_value: float | None = None

    @property
    def value(self) -> float | None:
        """The value of the first objective."""
        if self.values:
            return self.values[0]
        return None

    @property
    def shown_value(self) -> float | None:
        """Its value; of a trial without one that at its last rung."""
        if self.values:
            return self.value
        return self.latest_value


class RungValue(Struct, frozen=True):
    """A trial's value at a rung.

    Attributes:
        number: The number of the trial.
        value: None if it was not a number.
        at: UTC unix seconds.
    """

    number: int
    rung: int
    step: int
    value: float | None
    attempt: int
    at: float


class StudyLookupError(ExplainedError, LookupError):
    """No study has this name, or several have; the message is one line."""

    is_refusal = True


def read_studies(connection: sqlite3.Connection, at: float | None = None) -> list[StudyRecord]:
    """All studies, newest first."""
    studies = _studies(connection, "?1 IS NULL OR created_at <= ?1 ORDER BY sequence DESC", at)
    if at is None:
        return studies
    return [_study_at(connection, study, at) for study in studies]


def get_study(connection: sqlite3.Connection, study_id: str, at: float | None = None) -> StudyRecord | None:
    """The study with this id; None if it does not exist, or did not."""
    study = next(iter(_studies(connection, "study_id = ?", study_id)), None)
    if study is None or at is None:
        return study
    if study.created_at > at:
        return None
    return _study_at(connection, study, at)


def studies_moved_after(connection: sqlite3.Connection, move_id: int) -> list[StudyRecord]:
    """The studies whose state has changed after this change."""
    rows = connection.execute("SELECT DISTINCT study_id FROM study_moves WHERE move_id > ?", (move_id,))
    studies = [get_study(connection, study_id) for (study_id,) in rows.fetchall()]
    return [study for study in studies if study is not None]


def find_study(
    connection: sqlite3.Connection, name: str | None, at: float | None = None, *, only: bool = False
) -> StudyRecord:
    """The study with the id ``name``, else the newest with that name, or the ``only`` one: what
    changes a study asks for that. None means the newest of all. Raises StudyLookupError."""
    studies = read_studies(connection, at)
    if name is None and studies:
        return studies[0]
    matches = [study for study in studies if study.study_id == name]
    if not matches:
        matches = [study for study in studies if study.name == name]
    if only and len(matches) > 1:
        ids = ", ".join(study.study_id for study in matches[:6])
        raise StudyLookupError(f"{name!r} is the name of {ids}; give the id of one")
    if matches:
        return matches[0]
    if not name:
        raise StudyLookupError("no study yet; gputui study run begins one")
    hint = "gputui study list names them"
    if near := difflib.get_close_matches(name, [study.study_id for study in studies], n=1, cutoff=0.5):
        hint = f"did you mean {near[0]}?"
    raise StudyLookupError(f"no study {name!r}; {hint}")


def get_trial(connection: sqlite3.Connection, study_id: str, number: int) -> TrialRecord:
    """One trial, which exists."""
    return _trials(connection, "study_id = ? AND number = ?", study_id, number)[0]


def read_trials(connection: sqlite3.Connection, study_id: str, at: float | None = None) -> list[TrialRecord]:
    """The trials of a study, ordered by number."""
    trials = _trials(connection, "study_id = ?1 AND (?2 IS NULL OR created_at <= ?2) ORDER BY number", study_id, at)
    if at is None:
        return trials
    rows = connection.execute(
        "SELECT r.trial, r.run_id, (SELECT min(a.created_at) FROM attempts AS a WHERE a.run_id = r.run_id) "
        "FROM runs AS r WHERE r.study_id = ? AND r.created_at <= ? ORDER BY r.sequence",
        (study_id, at),
    )
    begun: dict[int, tuple[str, float | None]] = {number: (run_id, since) for number, run_id, since in rows}
    passed = {passage.number: passage for passage in read_rungs(connection, study_id, at)}
    return [
        _trial_at(trial, *(begun.get(trial.number) or (None, None)), passed=passed.get(trial.number), at=at)
        for trial in trials
    ]


class TrialReader:
    """Reads the trials of a study repeatedly, but those that are over only once. It does not notice
    that the run of such a trial is removed."""

    def __init__(self, connection: sqlite3.Connection, study_id: str) -> None:
        self._connection = connection
        self._study_id = study_id
        self._known: list[TrialRecord] = []

    def read(self) -> list[TrialRecord]:
        """The trials, ordered by number, which count from 0 without gaps."""
        # A study that is resumed reopens trials.
        over = ", ".join(f"'{state}'" for state in _VERDICTS)
        unread = f"number >= ? OR number IN (SELECT value FROM json_each(?)) OR state NOT IN ({over})"  # noqa: S608
        going_on = [trial.number for trial in self._known if not trial.state.is_over]
        values = (self._study_id, len(self._known), json.dumps(going_on))
        for trial in _trials(self._connection, f"study_id = ? AND ({unread}) ORDER BY number", *values):
            self._known[trial.number : trial.number + 1] = [trial]
        return list(self._known)


def read_rungs(
    connection: sqlite3.Connection, study_id: str, at: float | None = None, *, numbers: Collection[int] | None = None
) -> list[RungValue]:
    """The values at rungs, ordered by trial and rung, of the trials in ``numbers`` or of all."""
    query = (
        "SELECT * FROM trial_rungs WHERE study_id = ?1 AND (?3 IS NULL OR at <= ?3) "
        "AND (?2 IS NULL OR number IN (SELECT value FROM json_each(?2))) ORDER BY number, rung"
    )
    numbers_json = None if numbers is None else json.dumps(list(numbers))
    return records(connection, RungValue, query, study_id, numbers_json, at)


def rungs_by_trial(
    connection: sqlite3.Connection, study_id: str, at: float | None = None
) -> defaultdict[int, list[RungValue]]:
    """The values at rungs of each trial."""
    by_trial: defaultdict[int, list[RungValue]] = defaultdict(list)
    for rung in read_rungs(connection, study_id, at):
        by_trial[rung.number].append(rung)
    return by_trial


def study_gpu_hours(connection: sqlite3.Connection, study_id: str, now: float) -> float:
    """GPU-hours of all runs of a study up to ``now`` (UTC unix seconds), including removed ones; 0
    on the CPU. Time in which trials share a GPU counts once."""
    # The union of the stays on each GPU: `covered` is the end of all stays before.
    row = connection.execute(
        "WITH stays AS (SELECT g.value AS gpu, a.started_at AS begin, min(coalesce(a.ended_at, ?1), ?1) AS end "
        "  FROM runs AS r JOIN attempts AS a USING (run_id), json_each(a.gpus) AS g "
        "  WHERE r.study_id = ?2 AND a.started_at <= ?1), "
        "behind AS (SELECT begin, end, coalesce(max(end) OVER (PARTITION BY gpu ORDER BY begin, end "
        "  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), begin) AS covered FROM stays) "
        "SELECT coalesce(sum(max(0, end - max(begin, covered))), 0) "
        "+ (SELECT coalesce(sum(p.gpus * p.ran_seconds), 0) FROM runs AS r JOIN placements AS p USING (run_id) "
        "  WHERE r.study_id = ?2) "
        "+ coalesce((SELECT removed_gpu_seconds FROM studies WHERE study_id = ?2), 0) FROM behind",
        (now, study_id),
    ).fetchone()
    return float(row[0]) / SECONDS_PER_HOUR


def study_wall_seconds(connection: sqlite3.Connection, study_id: str, now: float) -> float:
    """The time that a study was running or stopping up to ``now`` (UTC unix seconds)."""
    moves = connection.execute(
        "SELECT at, to_state FROM study_moves WHERE study_id = ? AND at <= ? ORDER BY move_id", (study_id, now)
    ).fetchall()
    goes_on = (StudyState.RUNNING, StudyState.STOPPING)
    spans = itertools.pairwise([*moves, (now, None)])
    return math.fsum(max(0.0, end - at) for (at, state), (end, _) in spans if state in goes_on)


def _studies(connection: sqlite3.Connection, condition: str, *values: object) -> list[StudyRecord]:
    return records(connection, StudyRecord, f"SELECT *, spec AS spec_json FROM studies WHERE {condition}", *values)  # noqa: S608


def _trials(connection: sqlite3.Connection, condition: str, *values: object) -> list[TrialRecord]:
    columns = (
        'iif(value IS NULL, NULL, coalesce(objective_values, json_array(value))) AS "values", '
        "(SELECT value FROM trial_rungs AS r WHERE r.study_id = trials.study_id AND r.number = trials.number "
        "ORDER BY rung DESC LIMIT 1) AS latest_value"
    )
    query = f"SELECT *, {columns}, constraint_values AS constraints FROM trials WHERE {condition}"  # noqa: S608
    return records(connection, TrialRecord, query, *values)


def _study_at(connection: sqlite3.Connection, study: StudyRecord, at: float) -> StudyRecord:
    row = connection.execute(
        "SELECT to_state, cause, at FROM study_moves WHERE study_id = ? AND at <= ? ORDER BY move_id DESC LIMIT 1",
        (study.study_id, at),
    ).fetchone()
    word, cause, since = row or (StudyState.RUNNING, None, None)
    state = StudyState(word)
    reason = None if state is StudyState.RUNNING else cause
    ended_at = since if state.is_over else None
    return replace(study, state=state, reason=reason, ended_at=ended_at, problem=None)


def _trial_at(
    trial: TrialRecord, run_id: str | None, since: float | None, *, passed: RungValue | None, at: float
) -> TrialRecord:
    if trial.ended_at is not None and trial.ended_at <= at:
        return trial
    state = TrialState.LAUNCHING
    if since is not None and since <= at:
        state = TrialState.RUNNING
    elif run_id is None and trial.origin == "enqueued":
        state = TrialState.ENQUEUED
    rung = value = None
    if passed is not None:
        rung = passed.rung
        value = passed.value
    then = replace(trial, run_id=run_id, state=state, rung=rung, latest_value=value)
    return replace(then, values=(), constraints=(), reason=None, ended_at=None)
