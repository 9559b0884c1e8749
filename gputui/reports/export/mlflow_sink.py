"""A run in the experiment ``gputui`` of an MLflow tracking store.

Exactly once if the store is a database (SQLite, or a server with one): the run is found by a tag, and MLflow stores a
metric's value of the same step and time only once. The values of every attempt are kept: a repeated step has two values
with different times. A trial of a study is a child of the study's run, which has no metrics.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from gputui.core.config import PRIVATE_DIR_MODE
from gputui.core.redaction import redact_text
from gputui.reports.export.line_file import cannot_write
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

# The limits of one request to an MLflow server (mlflow.org, REST API, "Log Batch").
_MAX_METRICS, _MAX_PARAMS, _MAX_TEXT = 1000, 100, 5000
# Characters that are replaced by an underscore, because MLflow refuses a whole batch for one of them in a name.
_INVALID = re.compile(r"[^\w./ :-]", re.ASCII)
_MAX_NAME = 250  # characters, MAX_ENTITY_KEY_LENGTH in mlflow.utils.validation
_STORY_SENTENCES = 100
_SYSTEM_ERROR = re.compile(r"\[Errno -?\d+\] ([^'\")]+)")
# Up to the last @ before the path. A database's password may contain a slash; digits before a slash are a port.
_LOGIN = re.compile(r"(?<=://)(?:[^/?#]*|[^/?#:@]*:(?!\d+/)[^@]*)@")
_PARENT = "mlflow.parentRunId"
_STATUS = {"succeeded": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


class MlflowSink:
    """A run of an MLflow tracking store, found by the tag ``gputui.key``.

    The position holds the sentences of the run's note, and the names of the exported metrics in the order of first use,
    which decides their names in MLflow. So a new process gives each metric the same name.
    """

    def __init__(self, subject: Subject, target: str, key: str) -> None:
        # MLflow would send telemetry.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        # A new process tries again if the server does not answer.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        for chatty in ("mlflow", "alembic"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
        self._metric, self._param, self._tag, self._error = Metric, Param, RunTag, MlflowException
        self._subject, self._about = subject, subject.about(key)
        self._uri = target
        with self._refusals():
            self._client: Any = MlflowClient(tracking_uri=target)
        self._run_id = ""
        self._story: list[str] = []
        self._names = UniqueNames()
        self.written = 0

    def refuse_taken(self) -> None:
        with self._refusals():
            run_id = self._find_run()
        if run_id is not None:
            raise TargetTakenError(f"{without_login(self._uri)} holds {self._about.run_id} already, as run {run_id}")

    def origin(self) -> Position:
        return {"story": [], "names": []}

    def begin(self, position: Position) -> Begun:
        with self._refusals():
            run_id = self._find_run()
        if run_id is None:
            self._story, self._names = [], UniqueNames()
        else:
            self._story = [str(text) for text in position["story"]]
            self._names = UniqueNames(position.get("names", ()))  # absent in positions of older versions
        with self._study_lock(), self._refusals():
            if run_id is None:
                self._run_id = self._create()
            else:
                self._run_id = run_id
                self._client.update_run(run_id, status="RUNNING")
            if (parent := self._client.get_run(self._run_id).data.tags.get(_PARENT)) is not None:
                self._client.update_run(parent, status="RUNNING")
        with self._refusals():
            param_names = UniqueNames()
            params = [
                self._param(param_names.valid(name), str(value)[:_MAX_TEXT])
                for name, value in cleaned(self._about.params).items()
            ]
            for start in range(0, len(params), _MAX_PARAMS):
                self._client.log_batch(self._run_id, params=params[start : start + _MAX_PARAMS])
        return Begun(self._position(), run_id is None)

    def write(self, items: Sequence[Item], has_more: bool) -> Position:
        notes = [item for item in items if isinstance(item, Note)]
        lines = (item for item in items if isinstance(item, StoredLine))
        points = [point for line in lines if (point := self._about.point(line)) is not None]
        metrics = [
            self._metric(self._names.valid(name), value, round(at * 1000), step)
            for step, at, values in points
            for name, value in values.items()
        ]
        self._story = [*self._story, *map(sentence, notes)][-_STORY_SENTENCES:]
        with self._refusals():
            for start in range(0, len(metrics), _MAX_METRICS):
                self._client.log_batch(self._run_id, metrics=metrics[start : start + _MAX_METRICS])
            if notes:
                self._client.log_batch(self._run_id, tags=list(self._tags(notes)))
        self.written += len(points)
        return self._position()

    def finish(self, state: str, ended_at: float) -> Position:
        with self._refusals():
            self._client.set_tag(self._run_id, f"{NOTE}state", state)
            if state not in _STATUS:
                return self._position()
            self._client.set_terminated(self._run_id, _STATUS[state], round(ended_at * 1000))
            parent = self._client.get_run(self._run_id).data.tags.get(_PARENT)
        if parent is not None:
            with self._study_lock():
                if self._subject.is_last_of_study():
                    # The next trial sets it to running again.
                    with self._refusals():
                        self._client.set_terminated(parent, "FINISHED", round(ended_at * 1000))
        return self._position()

    def _position(self) -> Position:
        return {"story": self._story, "names": self._names.originals}

    def _find_run(self, key: str | None = None) -> str | None:
        """The MLflow ID of the run with this key (by default its own), if an earlier process created it."""
        experiment = self._client.get_experiment_by_name(PROJECT)
        if experiment is None:
            return None
        filter_string = f"tags.`{NOTE}key` = '{key or self._about.key}'"
        runs = self._client.search_runs([experiment.experiment_id], filter_string, max_results=1)
        return str(runs[0].info.run_id) if runs else None

    def _create(self) -> str:
        about = self._about
        tags = {f"{NOTE}run": about.run_id, f"{NOTE}profile": about.profile, f"{NOTE}key": about.key}
        if about.study is not None:
            tags |= {
                f"{NOTE}study": about.study.study_id,
                f"{NOTE}trial": str(about.study.trial),
                _PARENT: self._parent(about.study),
            }
        run = self._client.create_run(
            self._experiment(), start_time=round(about.created_at * 1000), tags=tags, run_name=about.run_id
        )
        return str(run.info.run_id)

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

    def _parent(self, study: StudyOfRun) -> str:
        """The run of the study, which its first trial creates under the lock."""
        key = f"{study.study_id} {study.created_at!r}"
        if (run_id := self._find_run(key)) is not None:
            return run_id
        tags = {f"{NOTE}study": study.study_id, f"{NOTE}profile": self._about.profile, f"{NOTE}key": key}
        began = round(study.created_at * 1000)
        run = self._client.create_run(self._experiment(), start_time=began, tags=tags, run_name=study.study_id)
        return str(run.info.run_id)

    @contextmanager
    def _study_lock(self) -> Iterator[None]:
        """Trials that begin together create one run of their study, and none finishes it while another begins."""
        if self._about.study is None:
            yield
            return
        path = self._about.study.folder / "mlflow.lock"
        with ExitStack() as held:
            try:
                path.parent.mkdir(mode=PRIVATE_DIR_MODE, parents=True, exist_ok=True)
                fcntl.flock(held.enter_context(path.open("a")), fcntl.LOCK_EX)
            except OSError as error:
                raise cannot_write(path, error) from error
            yield

    def _tags(self, notes: Sequence[Note]) -> Iterator[Any]:
        yield self._tag("mlflow.note.content", "\n".join(f"- {text}" for text in self._story)[-_MAX_TEXT:])
        yield self._tag(f"{NOTE}attempt", str(max(note.attempt for note in notes)))
        incidents = [note.data["kind"] for note in notes if note.kind == "incident"]
        if incidents:
            yield self._tag(f"{NOTE}incident", incidents[-1])

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Convert the errors of MLflow and its libraries, which may be of any type."""
        try:
            yield
        except ExportError:
            raise
        except Exception as error:
            raise ExportError(f"MLflow refuses {without_login(self._uri)}: {_in_words(error)}") from error


def without_login(uri: str) -> str:
    """The address without user and password."""
    return _LOGIN.sub("", uri, count=1)


def _in_words(error: Exception) -> str:
    """An error in one line; only the cause of a long network error."""
    text = redact_text(" ".join(f"{error}".split())) or type(error).__name__
    cause = _SYSTEM_ERROR.search(text)
    return text[:300] if cause is None else cause.group(1)


class UniqueNames:
    """Valid MLflow names for metrics or parameters, a different one for each.

    A name that becomes one already in use gets a hash of the original. So the result depends on the order of first use;
    ``originals`` has the names in that order, and ``UniqueNames(originals)`` gives the same results.
    """

    def __init__(self, originals: Iterable[str] = ()) -> None:
        self._valid: dict[str, str] = {}
        self._used: set[str] = set()
        for name in originals:
            self.valid(str(name))

    @property
    def originals(self) -> list[str]:
        return list(self._valid)

    def valid(self, name: str) -> str:
        """The valid name for a metric or parameter."""
        if name not in self._valid:
            text = _valid_name(name)
            if text in self._used:
                text = _with_hash(text, name)
            self._valid[name] = text
            self._used.add(text)
        return self._valid[name]


def _valid_name(name: str) -> str:
    """A valid name for MLflow, which refuses long names and those that are not normalised paths."""
    parts = (part for part in _INVALID.sub("_", name).split("/") if part not in ("", "."))
    text = "/".join("__" if part == ".." else part for part in parts) or "_"
    if text.startswith(".."):
        text = f"__{text[2:]}"
    return text if len(text) <= _MAX_NAME else _with_hash(text, name)


def _with_hash(text: str, original: str) -> str:
    """A valid name, shortened if necessary, with a hash of the original one."""
    digest = hashlib.sha256(original.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{text[: _MAX_NAME - 1 - len(digest)]}-{digest}"
