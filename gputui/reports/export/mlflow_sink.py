"""A run in the experiment ``gputui`` of an MLflow tracking store.

Exactly once where the store is a database (SQLite, or a server with one): the run is found again by a tag, and MLflow
takes a metric's value of the same step and time only once. Every attempt's values are kept: a repeated step has two
values that differ in time. A trial of a study is a child of the study's run, which has no metrics of its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gputui.config import PRIVATE_DIR_MODE
from gputui.redaction import redact_text
from gputui.reports.export.sink import (
    NOTE,
    PROJECT,
    Begun,
    ExportError,
    Position,
    StudyOfRun,
    TargetTakenError,
    cleaned,
    sentence,
)
from gputui.reports.export.subject import Subject
from gputui.store.metrics.exported import Item, Note
from gputui.store.metrics.queries import StoredLine

# The most that one request to an MLflow server may hold (mlflow.org, REST API, "Log Batch").
_MOST_METRICS, _MOST_PARAMS, _MOST_TEXT = 1000, 100, 5000
# What MLflow takes in names; it refuses a whole batch for one other character, which becomes an underscore.
_ODD = re.compile(r"[^\w./ :-]", re.ASCII)
_MOST_NAME = 250  # characters, MAX_ENTITY_KEY_LENGTH in mlflow.utils.validation
_STORY_SENTENCES = 100
_SYSTEM_ERROR = re.compile(r"\[Errno -?\d+\] ([^'\")]+)")
_PARENT = "mlflow.parentRunId"
_STATUS = {"succeeded": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


class MlflowSink:
    def __init__(self, subject: Subject, target: str, key: str) -> None:
        # Without it MLflow reports its use to its makers over the network.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        # A server that does not answer is tried again by a new process, which says so.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        for chatty in ("mlflow", "alembic"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
        self._metric, self._param, self._tag, self._error = Metric, Param, RunTag, MlflowException
        self._about = subject.about(key)
        self._uri = target
        with self._refusals():
            self._client: Any = MlflowClient(tracking_uri=target)
        self._run_id = ""
        self._story: list[str] = []
        self.written = 0

    def refuse_taken(self) -> None:
        with self._refusals():
            known = self._known()
        if known is not None:
            raise TargetTakenError(f"{without_login(self._uri)} holds {self._about.run_id} already, as run {known}")

    def origin(self) -> Position:
        return {"story": []}

    def begin(self, position: Position) -> Begun:
        with self._refusals():
            known = self._known()
            self._story = [] if known is None else [str(text) for text in position["story"]]
            if known is None:
                self._run_id = self._create()
            else:
                self._run_id = known
                self._client.update_run(known, status="RUNNING")
            if (parent := self._client.get_run(self._run_id).data.tags.get(_PARENT)) is not None:
                self._client.update_run(parent, status="RUNNING")
            params = [self._param(name, value) for name, value in _params(cleaned(self._about.params)).items()]
            for start in range(0, len(params), _MOST_PARAMS):
                self._client.log_batch(self._run_id, params=params[start : start + _MOST_PARAMS])
        return Begun({"story": self._story}, known is None)

    def write(self, items: Sequence[Item], has_more: bool) -> Position:
        notes = [item for item in items if isinstance(item, Note)]
        lines = (item for item in items if isinstance(item, StoredLine))
        points = [point for line in lines if (point := self._about.point(line)) is not None]
        metrics = [
            self._metric(_name(name), value, round(at * 1000), step)
            for step, at, values in points
            for name, value in values.items()
        ]
        self._story = [*self._story, *map(sentence, notes)][-_STORY_SENTENCES:]
        with self._refusals():
            for start in range(0, len(metrics), _MOST_METRICS):
                self._client.log_batch(self._run_id, metrics=metrics[start : start + _MOST_METRICS])
            if notes:
                self._client.log_batch(self._run_id, tags=list(self._tags(notes)))
        self.written += len(points)
        return {"story": self._story}

    def finish(self, state: str, ended_at: float) -> Position:
        with self._refusals():
            self._client.set_tag(self._run_id, f"{NOTE}state", state)
            if state in _STATUS:
                self._client.set_terminated(self._run_id, _STATUS[state], round(ended_at * 1000))
                if (parent := self._client.get_run(self._run_id).data.tags.get(_PARENT)) is not None:
                    # The next trial begins it again.
                    self._client.set_terminated(parent, "FINISHED", round(ended_at * 1000))
        return {"story": self._story}

    def _known(self, key: str | None = None) -> str | None:
        """The id in MLflow of the run with a key, its own unless given, if an earlier process made it."""
        experiment = self._client.get_experiment_by_name(PROJECT)
        if experiment is None:
            return None
        wanted = f"tags.`{NOTE}key` = '{key or self._about.key}'"
        found = self._client.search_runs([experiment.experiment_id], wanted, max_results=1)
        return str(found[0].info.run_id) if found else None

    def _create(self) -> str:
        about = self._about
        tags = {f"{NOTE}run": about.run_id, f"{NOTE}profile": about.profile, f"{NOTE}key": about.key}
        if about.study is not None:
            tags |= {
                f"{NOTE}study": about.study.study_id,
                f"{NOTE}trial": str(about.study.trial),
                _PARENT: self._parent(about.study),
            }
        made = self._client.create_run(
            self._experiment(), start_time=round(about.created_at * 1000), tags=tags, run_name=about.run_id
        )
        return str(made.info.run_id)

    def _experiment(self) -> str:
        experiment = self._client.get_experiment_by_name(PROJECT)
        if experiment is None:
            try:
                return str(self._client.create_experiment(PROJECT))
            except self._error:
                # Another run's sink has just made it.
                experiment = self._client.get_experiment_by_name(PROJECT)
                if experiment is None:
                    raise
        return str(experiment.experiment_id)

    def _parent(self, study: StudyOfRun) -> str:
        """The run of the study, which the first of its trials makes."""
        key = f"{study.study_id} {study.created_at!r}"
        study.folder.mkdir(mode=PRIVATE_DIR_MODE, parents=True, exist_ok=True)
        with (study.folder / "mlflow.lock").open("a") as lock:
            # The trials that begin together must not make two.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (known := self._known(key)) is not None:
                return known
            tags = {f"{NOTE}study": study.study_id, f"{NOTE}profile": self._about.profile, f"{NOTE}key": key}
            began = round(study.created_at * 1000)
            made = self._client.create_run(self._experiment(), start_time=began, tags=tags, run_name=study.study_id)
            return str(made.info.run_id)

    def _tags(self, notes: Sequence[Note]) -> Iterator[Any]:
        yield self._tag("mlflow.note.content", "\n".join(f"- {text}" for text in self._story)[-_MOST_TEXT:])
        yield self._tag(f"{NOTE}attempt", str(max(note.attempt for note in notes)))
        incidents = [note.data["kind"] for note in notes if note.kind == "incident"]
        if incidents:
            yield self._tag(f"{NOTE}incident", incidents[-1])

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """What MLflow and the libraries below it raise, which may be anything."""
        try:
            yield
        except ExportError:
            raise
        except Exception as error:
            raise ExportError(f"MLflow refuses {without_login(self._uri)}: {_in_words(error)}") from error


def without_login(uri: str) -> str:
    """The address without name and password."""
    scheme, mark, rest = uri.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"


def _in_words(error: Exception) -> str:
    """An error in one line; of a long one about the network its cause alone."""
    text = redact_text(" ".join(f"{error}".split())) or type(error).__name__
    cause = _SYSTEM_ERROR.search(text)
    return text[:300] if cause is None else cause.group(1)


def _name(name: str) -> str:
    """A name as MLflow takes it: it refuses one that would be another as a file's path, and a long one."""
    parts = (part for part in _ODD.sub("_", name).split("/") if part not in ("", "."))
    text = "/".join("__" if part == ".." else part for part in parts) or "_"
    if text.startswith(".."):
        text = f"__{text[2:]}"
    return text if len(text) <= _MOST_NAME else _marked(text, name)


def _marked(text: str, name: str) -> str:
    """A name that is not another's which looks the same."""
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{text[: _MOST_NAME - 1 - len(mark)]}-{mark}"


def _params(params: Mapping[str, Any]) -> dict[str, str]:
    """Parameters as MLflow takes them: it refuses a second value of one name."""
    taken: dict[str, str] = {}
    for name, value in params.items():
        text = _name(name)
        taken[_marked(text, name) if text in taken else text] = _text(value)
    return taken


def _text(value: Any) -> str:
    return str(value)[:_MOST_TEXT]
