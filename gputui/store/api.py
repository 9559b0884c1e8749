"""The functions and records of ``import gputui``: runs, metrics and GPUs of a home, read-only.

Times are aware datetimes in UTC; unknown is None. Only the store is imported: `gputui.runs` and `gputui.metrics` are
also packages, which would take the functions' names.
"""

from __future__ import annotations

import dataclasses
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gputui.core.config import locate, own_checkout
from gputui.store import hardware, rollups
from gputui.store import runs as stored_runs
from gputui.store.attempts import Attempt, cuts_of, read_attempts, run_cost
from gputui.store.database import StoreError, one_moment, open_reader
from gputui.store.metrics import queries
from gputui.store.metrics.stored_lines import as_float
from gputui.store.rows import named_rows
from gputui.store.run_history import read_decisions, read_incidents
from gputui.store.run_states import RunState
from gputui.store.runs import Run, RunLookupError

if TYPE_CHECKING:
    import pandas
    import polars

__all__ = ["RunLookupError", "StoreError"]

Home = str | os.PathLike[str] | None
"""The folder of ``--home``; None for that of ``gputui`` without it."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One start of a run's command.

    Attributes:
        gpus: UUIDs.
        incident: the kind of failure that ended it, such as ``cuda_oom``; ``summary`` tells it in a sentence.
        decision: what was decided then, and why.
    """

    number: int
    state: str
    params: Mapping[str, Any]
    gpus: tuple[str, ...]
    started_at: datetime | None
    ended_at: datetime | None
    exit_code: int | None
    exit_signal: int | None
    resumed_from: str | None
    resumed_step: int | None
    last_step: int | None
    incident: str | None
    summary: str | None
    decision: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run, as ``gputui show --json`` has it.

    Attributes:
        params: those of the newest attempt.
        gpus: the UUIDs of its GPUs, or those of its newest attempt.
        reason: why it ended, recovers or waits.
        latest: the newest value of each metric.
    """

    id: str
    name: str
    profile: str
    state: str
    params: Mapping[str, Any]
    gpus: tuple[str, ...]
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    reason: str | None
    target: str | None
    study: str | None
    trial: int | None
    tags: tuple[str, ...]
    note: str | None
    gpu_hours: float | None
    energy_joules: float | None
    latest: Mapping[str, float]
    attempts: tuple[AttemptRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPoint:
    """One value of one metric; it may be NaN or infinite.

    Attributes:
        rank: None where the line names none.
        repeated: a later attempt did this step again, so that this value no longer counts.
    """

    attempt: int
    rank: int | None
    step: int | None
    time: datetime | None
    name: str
    value: float
    repeated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPoint:
    """A GPU at one moment, or its means over the minute or hour from there.

    Attributes:
        run: the id of the run that leases it now; None of the past.
    """

    time: datetime | None
    index: int
    uuid: str
    model: str
    utilization_percent: float | None
    memory_used_bytes: float | None
    temperature_celsius: float | None
    power_watts: float | None
    sm_clock_mhz: float | None
    run: str | None


class Table(list[T], Generic[T]):
    """A list of records that becomes a DataFrame with a column per field."""

    def __init__(self, record: type[T], rows: Iterable[T]) -> None:
        super().__init__(rows)
        self._record = record

    def _columns(self) -> dict[str, list[Any]]:
        names = [field.name for field in dataclasses.fields(self._record)]  # type: ignore[arg-type]
        return {name: [getattr(row, name) for row in self] for name in names}

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame of pandas. Raises ImportError."""
        with _installed("pandas"):
            import pandas

        return pandas.DataFrame(self._columns())

    def to_polars(self) -> polars.DataFrame:
        """A DataFrame of polars. Raises ImportError."""
        with _installed("polars"):
            import polars

        return polars.DataFrame(self._columns(), strict=False)


def runs(
    *,
    state: str | None = None,
    profile: str | None = None,
    tag: str | None = None,
    study: str | None = None,
    home: Home = None,
) -> Table[RunRecord]:
    """The runs, newest first: all, or those with this state, profile, tag and study.

    Raises:
        TypeError: one of them is not text.
        ValueError: there is no such state.
        StoreError: the home cannot be read.
    """
    texts = {"state": state, "profile": profile, "tag": tag, "study": study}
    _check_texts(**{name: value for name, value in texts.items() if value is not None})
    states = [str(run_state) for run_state in RunState]
    if state is not None and state not in states:
        raise ValueError(f"{state!r} is no state of a run; they are {', '.join(states)}")
    conditions = {"state": state, "profile": profile, "study_id": study}
    with _opened(home) as connection:
        chosen = [
            stored
            for stored in stored_runs.read_runs(connection)
            if all(value is None or getattr(stored, name) == value for name, value in conditions.items())
            and (tag is None or tag in stored.tags)
        ]
        return Table(RunRecord, [_run(connection, stored) for stored in chosen])


def run(run_id: str, *, home: Home = None) -> RunRecord:
    """The run with this id, else the newest with this name. Raises TypeError, RunLookupError or
    StoreError."""
    _check_texts(run_id=run_id)
    with _opened(home) as connection:
        return _run(connection, stored_runs.find_run(connection, run_id))


def metrics(run_id: str, names: str | Sequence[str] | None = None, *, home: Home = None) -> Table[MetricPoint]:
    """Every value of a run's metrics, or of those ``names``, in the order written, of all attempts and ranks.

    Raises:
        TypeError: the id or a name is not text.
        RunLookupError: there is no such run.
        LookupError: the run has no such metric.
        StoreError: the home cannot be read.
    """
    wanted_names = list(names or ())
    if isinstance(names, str):
        wanted_names = [names]
    _check_texts(run_id=run_id, **{f"names[{place}]": name for place, name in enumerate(wanted_names)})
    with _opened(home) as connection:
        full_id = stored_runs.find_run(connection, run_id).run_id
        known_names = queries.metric_names(connection, full_id)
        for name in wanted_names:
            if name not in known_names:
                raise LookupError(f"{full_id} has no metric {name!r}; it has {', '.join(known_names) or 'none yet'}")
        cuts = cuts_of(read_attempts(connection, full_id))
        points = queries.points_json(connection, full_id, wanted_names or known_names)
        return Table(MetricPoint, [_point(point, cuts) for point in points])


def gpus(since: datetime | timedelta | None = None, *, home: Home = None) -> Table[GpuPoint]:
    """The newest values of each GPU; with ``since`` those from a time on, or from so long ago on.

    What is too old for samples comes as means over minutes, then hours. Raises TypeError or StoreError.
    """
    if not isinstance(since, datetime | timedelta | None):
        raise TypeError(f"since is a datetime or a timedelta, not {since!r}")
    now = time.time()
    with _opened(home) as connection:
        if since is None:
            return Table(GpuPoint, [_newest(view) for view in hardware.read_gpus(connection, now)])
        begin = now - since.total_seconds() if isinstance(since, timedelta) else since.timestamp()
        return Table(GpuPoint, list(_history(connection, begin)))


@contextmanager
def _installed(library: str) -> Iterator[None]:
    """A place for its import. Raises ImportError."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(f"{error}; pip install {library}", name=error.name) from error


def _check_texts(**arguments: object) -> None:
    """Raise TypeError for the first that is no text."""
    for name, value in arguments.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} is text, not {type(value).__name__}")


@contextmanager
def _opened(home: Home) -> Iterator[sqlite3.Connection]:
    """A connection to the home's store, at one moment. Raises StoreError."""
    with closing(open_reader(locate(home, checkout=own_checkout()).database)) as connection, one_moment(connection):
        yield connection


def _moment(at: float | None) -> datetime | None:
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC)


def _run(connection: sqlite3.Connection, stored: Run) -> RunRecord:
    cost = run_cost(connection, stored.run_id, time.time())
    reason = stored.waiting_for if stored.reason is None else stored.reason
    return RunRecord(
        id=stored.run_id,
        name=stored.name,
        profile=stored.profile,
        state=str(stored.state),
        params=dict(stored.params),
        gpus=stored.gpus,
        created_at=datetime.fromtimestamp(stored.created_at, UTC),
        started_at=_moment(stored.started_at),
        ended_at=_moment(stored.ended_at),
        reason=reason,
        target=stored.target,
        study=stored.study_id,
        trial=stored.trial,
        tags=stored.tags,
        note=stored.note,
        gpu_hours=cost.gpu_hours,
        energy_joules=cost.energy_joules,
        latest=queries.latest(connection, stored.run_id),
        attempts=_attempts(connection, stored.run_id),
    )


def _attempts(connection: sqlite3.Connection, run_id: str) -> tuple[AttemptRecord, ...]:
    # Of several incidents of an attempt the first counts, because the others follow from it.
    incidents = {incident.attempt: incident for incident in reversed(read_incidents(connection, run_id))}
    decisions = {decision.incident_id: decision.reason for decision in read_decisions(connection, run_id)}

    def record(attempt: Attempt) -> AttemptRecord:
        kind = summary = decision = None
        if (incident := incidents.get(attempt.number)) is not None:
            kind = incident.kind
            summary = incident.summary
            decision = decisions.get(incident.incident_id)
        return AttemptRecord(
            number=attempt.number,
            state=attempt.state,
            params=dict(attempt.params),
            gpus=attempt.gpus,
            started_at=_moment(attempt.started_at),
            ended_at=_moment(attempt.ended_at),
            exit_code=attempt.exit_code,
            exit_signal=attempt.exit_signal,
            resumed_from=attempt.resumed_from,
            resumed_step=attempt.resumed_step,
            last_step=attempt.last_step,
            incident=kind,
            summary=summary,
            decision=decision,
        )

    return tuple(record(attempt) for attempt in read_attempts(connection, run_id))


def _point(point: Mapping[str, Any], cuts: Mapping[int, float]) -> MetricPoint:
    step = point["step"]
    attempt = point["attempt"]
    value = as_float(point["value"])
    assert value is not None, "it is a number"
    return MetricPoint(
        attempt=attempt,
        rank=point["rank"],
        step=step,
        time=_moment(point["time"]),
        name=point["name"],
        value=value,
        repeated=step is not None and attempt in cuts and step >= cuts[attempt],
    )


def _newest(view: hardware.GpuView) -> GpuPoint:
    return GpuPoint(
        time=_moment(view.at),
        index=view.index,
        uuid=view.uuid,
        model=view.name,
        utilization_percent=view.utilization_percent,
        memory_used_bytes=view.memory_used_bytes,
        temperature_celsius=view.temperature_celsius,
        power_watts=view.power_watts,
        sm_clock_mhz=view.sm_clock_mhz,
        run=view.run_id,
    )


def _history(connection: sqlite3.Connection, since: float) -> Iterator[GpuPoint]:
    """The values of all GPUs since a time, in order of time: the finest that are still kept."""
    limits = rollups.bounds(connection)
    names = [statistic.column for statistic in rollups.GPU_KEPT]
    means = [f"{name}_mean AS {name}" for name in names]
    for table, columns, begin, end in (
        ("gpu_hours", means, 0.0, limits.minutes_since),
        ("gpu_minutes", means, limits.minutes_since, limits.raw_since),
        ("gpu_samples", names, limits.raw_since, float("inf")),
    ):
        query = (
            f"SELECT at, position, uuid, name, {', '.join(columns)} FROM {table} JOIN gpus USING (gpu_id) "  # noqa: S608
            "WHERE at >= ? AND at < ? ORDER BY at, position"
        )
        for row in named_rows(connection, query, (max(since, begin), end)):
            yield GpuPoint(
                time=_moment(row["at"]),
                index=row["position"],
                uuid=row["uuid"],
                model=row["name"],
                **{name: row[name] for name in names},
                run=None,
            )
