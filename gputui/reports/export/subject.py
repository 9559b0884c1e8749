"""The run that is exported, and its values as a sink writes them."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from gputui.core.redaction import redact_params
from gputui.reports.export.formats import Format
from gputui.runs.stored_spec import known_spec
from gputui.store.metrics import queries
from gputui.store.metrics.stored_lines import StoredLine
from gputui.store.runs import Run, find_run, has_live_trials


class Subject(Struct, frozen=True):
    """The exported run.

    Attributes:
        connection: a connection that reads the store.
        params: the parameters of the launch, without secrets.
        requested_metrics: the metrics to export; none for all.
        key: unique to this run and target, and constant.
        study_created_at: when the study of a trial was created, UTC unix seconds; None for other runs.
        environment: the settings of a tracker.
    """

    connection: sqlite3.Connection
    run: Run
    params: Mapping[str, Any]
    requested_metrics: tuple[str, ...]
    key: str
    study_created_at: float | None = None
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)

    def metrics(self) -> tuple[str, ...]:
        """The names to write that exist now."""
        return self.requested_metrics or tuple(queries.metric_names(self.connection, self.run.run_id))

    def lines(self) -> Iterator[StoredLine]:
        return queries.lines(self.connection, self.run.run_id)

    def is_last_of_study(self) -> bool:
        """Return whether no other trial of its study is alive now. Raises sqlite3.Error."""
        study_id = self.run.study_id
        run_id = self.run.run_id
        return study_id is None or not has_live_trials(self.connection, study_id, besides=run_id)

    def values(self, line: StoredLine) -> dict[str, float]:
        """The requested metrics of a line."""
        numbers = line.numbers()
        if self.requested_metrics:
            return {name: numbers[name] for name in self.requested_metrics if name in numbers}
        return numbers

    def point(self, line: StoredLine) -> tuple[int, float, dict[str, float]] | None:
        """(step, unix seconds, values) of a line; None without a step or values. Values of ranks
        other than the first are named ``rank<N>/``, because trackers have no ranks."""
        if line.step is None or not (values := self.values(line)):
            return None
        if line.rank:
            values = {f"rank{line.rank}/{name}": value for name, value in values.items()}
        at = self.run.created_at if line.at is None else line.at
        return line.step, at, values


def read_subject(
    connection: sqlite3.Connection,
    run_id: str,
    name: Format,
    target: str,
    requested_metrics: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> Subject:
    """The run for one export. Raises RunLookupError or sqlite3.Error."""
    run = find_run(connection, run_id)
    spec = known_spec(run)
    launched = run.params if spec is None else spec.params
    params = redact_params(dict(launched))
    query = "SELECT created_at FROM studies WHERE study_id = ?"
    study = connection.execute(query, (run.study_id,)).fetchone()
    identity = "\0".join((run.run_id, repr(run.created_at), name, target, *requested_metrics))
    key = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    created_at = None if study is None else study[0]
    return Subject(
        connection,
        run,
        params,
        requested_metrics=requested_metrics,
        key=key,
        study_created_at=created_at,
        environment=environment or {},
    )
