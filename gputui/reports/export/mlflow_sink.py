"""A run in the experiment ``gputui`` of an MLflow tracking store.

Exactly once if the store is a database (SQLite, or a server with one): the run is found by a tag,
and MLflow stores a metric's value of the same step and time only once. The values of every attempt
are kept: a repeated step has two values with different times. A trial of a study is a child of the
study's run, which has no metrics.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gputui.core.redaction import redact_text
from gputui.reports.export.sink import ExportError, Position, Sink, TargetTakenError
from gputui.reports.export.subject import Subject
from gputui.reports.export.texts import NOTE, PROJECT, STORY_SENTENCES, clean_value, sentence
from gputui.store.metrics.exported import Item, Note
from gputui.store.metrics.stored_lines import StoredLine

# The limits of one request to an MLflow server (mlflow.org, REST API, "Log Batch").
_MAX_METRICS = 1000
_MAX_PARAMS = 100
_MAX_TEXT = 5000
# Characters that are replaced by an underscore: MLflow refuses a whole batch for one in a name.
_INVALID = re.compile(r"[^\w./ :-]", re.ASCII)
_MAX_NAME = 250  # characters, MAX_ENTITY_KEY_LENGTH in mlflow.utils.validation
_SYSTEM_ERROR = re.compile(r"\[Errno -?\d+\] ([^'\")]+)")
# Up to the last @ before the path. A database's password may contain a slash; digits before a slash
# are a port.
_LOGIN = re.compile(r"(?<=://)(?:[^/?#]*|[^/?#:@]*:(?!\d+/)[^@]*)@")
_PARENT = "mlflow.parentRunId"
_STATUS = {"succeeded": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
# Trials that begin together create one run of their study, and none finishes it while another
# begins.
_STUDY_LOCKS: dict[str, threading.Lock] = defaultdict(threading.Lock)


class SharedEnvironment:
    """The variables of MLflow, which its client reads from the process's environment at each
    request: sinks of runs with other settings take turns."""

    def __init__(self) -> None:
        environment = {name: text for name, text in os.environ.items() if name.startswith("MLFLOW_")}
        # MLflow would send telemetry, and try for minutes where the next sink tries again.
        self._own = {
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
            "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
            **environment,
        }
        self._condition = threading.Condition()
        self._values: Mapping[str, str] = {}
        self._users = 0

    @contextmanager
    def of(self, values: Mapping[str, str]) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._users or self._values == values)
            for name in self._values.keys() - values.keys():
                os.environ.pop(name, None)
            os.environ.update({**self._own, **values})
            self._values = values
            self._users += 1
        try:
            yield
        finally:
            with self._condition:
                self._users -= 1
                self._condition.notify_all()


_ENVIRONMENT = SharedEnvironment()


class MlflowSink(Sink):
    """A run of an MLflow tracking store, found by the tag ``gputui.key``.

    The position holds the sentences of the run's note, and the names of the exported metrics in the
    order of first use, which decides their names in MLflow.
    """

    def __init__(self, subject: Subject, target: str) -> None:
        super().__init__(subject, target)
        with self._calls():
            from mlflow.entities import Metric, Param, RunTag
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient

            self._client: Any = MlflowClient(tracking_uri=target)
        for chatty in ("mlflow", "alembic"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
        self._metric = Metric
        self._param = Param
        self._tag = RunTag
        self._error = MlflowException
        self._run_id = ""
        self._story: list[str] = []
        self._names = UniqueNames()

    def refuse_taken(self) -> None:
        with self._calls():
            tracker_run = self._find_run(self._subject.key)
        if tracker_run is not None:
            name = self._subject.run.run_id
            where = without_login(self._target)
            raise TargetTakenError(f"{where} holds {name} already, as run {tracker_run}")

    def begin(self, position: Position) -> bool:
        with self._calls(), self._study_lock():
            tracker_run = self._find_run(self._subject.key)
            if tracker_run is None:
                self._run_id = self._create()
            else:
                self._run_id = tracker_run
                self._story = [str(text) for text in position.get("story", ())]
                self._names = UniqueNames(position.get("names", ()))
                self._client.update_run(tracker_run, status="RUNNING")
            if (parent := self._parent_of_run()) is not None:
                self._client.update_run(parent, status="RUNNING")
        with self._calls():
            names = UniqueNames()
            params = [
                self._param(names.valid(name), str(value)[:_MAX_TEXT])
                for name, value in clean_value(self._subject.params).items()
            ]
            for start in range(0, len(params), _MAX_PARAMS):
                self._client.log_batch(self._run_id, params=params[start : start + _MAX_PARAMS])
        return tracker_run is None

    def write(self, items: Sequence[Item], has_more: bool) -> None:
        notes = [item for item in items if isinstance(item, Note)]
        lines = (item for item in items if isinstance(item, StoredLine))
        points = [point for line in lines if (point := self._subject.point(line)) is not None]
        metrics = [
            self._metric(self._names.valid(name), value, round(at * 1000), step)
            for step, at, values in points
            for name, value in values.items()
        ]
        self._story = [*self._story, *map(sentence, notes)][-STORY_SENTENCES:]
        with self._calls():
            for start in range(0, len(metrics), _MAX_METRICS):
                self._client.log_batch(self._run_id, metrics=metrics[start : start + _MAX_METRICS])
            if notes:
                self._client.log_batch(self._run_id, tags=list(self._tags(notes)))
        self.written += len(points)

    def finish(self, state: str, ended_at: float) -> None:
        at = round(ended_at * 1000)
        with self._calls():
            self._client.set_tag(self._run_id, f"{NOTE}state", state)
            if state in _STATUS:
                self._client.set_terminated(self._run_id, _STATUS[state], at)
                with self._study_lock():
                    parent = self._parent_of_run()
                    if parent is not None and self._subject.is_last_of_study():
                        # The next trial sets it to running again.
                        self._client.set_terminated(parent, "FINISHED", at)

    def position(self) -> Position:
        return {"story": self._story, "names": self._names.originals}

    def _find_run(self, key: str) -> str | None:
        """The MLflow ID of the run with this key, if an earlier process created it."""
        experiment = self._client.get_experiment_by_name(PROJECT)
        if experiment is None:
            return None
        tag = f"tags.`{NOTE}key` = '{key}'"
        runs = self._client.search_runs([experiment.experiment_id], tag, max_results=1)
        if runs:
            return str(runs[0].info.run_id)
        return None

    def _parent_of_run(self) -> str | None:
        if self._subject.study_created_at is None:
            return None
        parent: str | None = self._client.get_run(self._run_id).data.tags.get(_PARENT)
        return parent

    def _create(self) -> str:
        """Create the run, and the run of its study for the first trial."""
        run = self._subject.run
        created_at = self._subject.study_created_at
        tags = {f"{NOTE}run": run.run_id, f"{NOTE}profile": run.profile}
        if run.study_id is not None and created_at is not None:
            of_study = {f"{NOTE}study": run.study_id}
            key = f"{run.study_id} {created_at!r}"
            parent = self._find_run(key)
            if parent is None:
                shared = {**of_study, f"{NOTE}profile": run.profile}
                parent = self._new_run(run.study_id, key, created_at, shared)
            tags |= {**of_study, f"{NOTE}trial": str(run.trial or 0), _PARENT: parent}
        return self._new_run(run.run_id, self._subject.key, run.created_at, tags)

    def _new_run(self, name: str, key: str, created_at: float, tags: dict[str, str]) -> str:
        tracker_run = self._client.create_run(
            self._experiment(), start_time=round(created_at * 1000), tags={**tags, f"{NOTE}key": key}, run_name=name
        )
        return str(tracker_run.info.run_id)

    def _experiment(self) -> str:
        experiment = self._client.get_experiment_by_name(PROJECT)
        if experiment is None:
            try:
                return str(self._client.create_experiment(PROJECT))
            except self._error:
                # Another run's sink has just created it.
                experiment = self._client.get_experiment_by_name(PROJECT)
                if experiment is None:
                    raise
        return str(experiment.experiment_id)

    @contextmanager
    def _study_lock(self) -> Iterator[None]:
        study_id = self._subject.run.study_id
        if study_id is None:
            yield
        else:
            with _STUDY_LOCKS[study_id]:
                yield

    def _tags(self, notes: Sequence[Note]) -> Iterator[Any]:
        story = "\n".join(f"- {text}" for text in self._story)
        yield self._tag("mlflow.note.content", story[-_MAX_TEXT:])
        yield self._tag(f"{NOTE}attempt", str(max(note.attempt for note in notes)))
        incidents = [note.data["kind"] for note in notes if note.kind == "incident"]
        if incidents:
            yield self._tag(f"{NOTE}incident", incidents[-1])

    @contextmanager
    def _calls(self) -> Iterator[None]:
        """Set the run's environment, and convert the errors of MLflow and its libraries, which may
        be of any type."""
        try:
            with _ENVIRONMENT.of(self._subject.environment):
                yield
        except ExportError:
            raise
        except Exception as error:
            text = redact_text(" ".join(f"{error}".split())) or type(error).__name__
            # Only the cause of a long network error.
            cause = _SYSTEM_ERROR.search(text)
            reason = text[:300] if cause is None else cause.group(1)
            raise ExportError(f"MLflow refuses {without_login(self._target)}: {reason}") from error


def without_login(uri: str) -> str:
    """The address without user and password."""
    return _LOGIN.sub("", uri, count=1)


class UniqueNames:
    """Valid MLflow names for metrics or parameters, a different one for each.

    A name that becomes one already in use gets a hash of the original. So the result depends on the
    order of first use, which ``originals`` has.
    """

    def __init__(self, originals: Iterable[str] = ()) -> None:
        self._valid: dict[str, str] = {}
        for name in originals:
            self.valid(str(name))

    @property
    def originals(self) -> list[str]:
        return list(self._valid)

    def valid(self, name: str) -> str:
        """The valid name for a metric or parameter."""
        if name not in self._valid:
            text = valid_name(name)
            if text in self._valid.values():
                text = _with_hash(text, name)
            self._valid[name] = text
        return self._valid[name]


def valid_name(name: str) -> str:
    """A valid name for MLflow, which refuses long names and those that are no normalised paths."""
    replacements = {"..": "__"}
    parts = (part for part in _INVALID.sub("_", name).split("/") if part not in ("", "."))
    text = "/".join(replacements.get(part, part) for part in parts) or "_"
    if text.startswith(".."):
        text = f"__{text[2:]}"
    if len(text) <= _MAX_NAME:
        return text
    return _with_hash(text, name)


def _with_hash(text: str, original: str) -> str:
    """A valid name, shortened if necessary, with a hash of the original one."""
    digest = hashlib.sha256(original.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{text[: _MAX_NAME - 1 - len(digest)]}-{digest}"
