"""The subject of an export: a run, its parameters and its lines."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.redaction import redact_params
from gputui.reports.export.sink import About, StudyOfRun
from gputui.store.metrics import queries
from gputui.store.metrics.queries import StoredLine
from gputui.store.rows import UNREADABLE, json_mapping
from gputui.store.runs import Run, find_run, has_live_trials
from gputui.store.studies import get_study


class Subject(Struct, frozen=True):
    """A run for exports. ``metrics`` are the names to write; ``lines`` starts a new iteration over its lines.
    ``wanted`` are the requested names, empty for all; ``connection`` reads the store."""

    connection: sqlite3.Connection
    run: Run
    params: Mapping[str, Any]
    metrics: tuple[str, ...]
    lines: Callable[[], Iterator[StoredLine]]
    wanted: tuple[str, ...] = ()
    names: Callable[[], tuple[str, ...]] = tuple

    def with_current_metrics(self) -> Subject:
        """The subject with the metrics that exist now, if none were requested."""
        return self if self.wanted else replace(self, metrics=self.names())

    def is_last_of_study(self) -> bool:
        """Whether no other trial of its study is alive now. Raises sqlite3.Error."""
        study_id = self.run.study_id
        return study_id is None or not has_live_trials(self.connection, study_id, besides=self.run.run_id)

    def about(self, key: str) -> About:
        """A sink's view of the run; ``key`` identifies its target."""
        run = self.run
        study = None if run.study_id is None else get_study(self.connection, run.study_id)
        of_study = None
        if study is not None:
            ((_, _, database), *_) = self.connection.execute("PRAGMA database_list").fetchall()
            folder = Path(database).parent / "studies" / study.study_id
            of_study = StudyOfRun(study.study_id, run.trial or 0, study.created_at, folder)
        return About(run.run_id, run.name, run.profile, run.created_at, self.params, self.wanted, key, of_study)


def read_subject(connection: sqlite3.Connection, run_id: str, metrics: tuple[str, ...] = ()) -> Subject:
    """The run, with all metrics or those named. Parameters are those of the launch without secrets."""
    run = find_run(connection, run_id)
    spec = json_mapping(run.spec_json)
    params = dict(run.params if spec is UNREADABLE else spec.get("params") or {})

    def names() -> tuple[str, ...]:
        return tuple(queries.metric_names(connection, run.run_id))

    return Subject(
        connection,
        run,
        redact_params(params),
        metrics or names(),
        lambda: queries.lines(connection, run.run_id),
        metrics,
        names,
    )
