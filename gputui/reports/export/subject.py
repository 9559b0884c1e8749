"""What is exported: a run, what it was launched with, and its metric lines."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gputui.store import metric_queries, queries
from gputui.store.metric_queries import StoredLine
from gputui.store.views import RunView


class ExportError(Exception):
    """It cannot be exported; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A run as exports want it. ``metrics`` are the names to write; ``lines`` begins a new walk over its lines each
    time it is called."""

    run: RunView
    params: Mapping[str, Any]
    metrics: tuple[str, ...]
    lines: Callable[[], Iterator[StoredLine]]


def read_subject(connection: sqlite3.Connection, run_id: str, metrics: tuple[str, ...] = ()) -> Subject:
    """The run and its metrics, or those named. Parameters are the launch's, secrets in them redacted already."""
    run = queries.run(connection, run_id)
    try:
        params = json.loads(run.spec_json).get("params") or {}
    except (ValueError, AttributeError):
        params = dict(run.params)
    names = metrics or tuple(metric_queries.metric_names(connection, run.run_id))
    return Subject(run, params, names, lambda: metric_queries.lines(connection, run.run_id))


def require(package: str, extra: str) -> None:
    """Raises ExportError where a package is missing, with what installs it."""
    if importlib.util.find_spec(package) is None:
        raise ExportError(f"this needs the package {package}: pip install 'gputui[{extra}]'")
