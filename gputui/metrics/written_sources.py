"""Sources of metrics among the files that a run writes, recognised by their names or first lines."""

from __future__ import annotations

import csv
import fnmatch
import glob
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import orjson

from gputui.core.files import open_regular
from gputui.metrics.formats import Reading
from gputui.metrics.trackers import TRACKERS, subfolder_of_run
from gputui.metrics.values import NUMBERS, printed_number
from gputui.store.metrics.stored_lines import NOT_METRICS

_HEAD_BYTES = 64 << 10
# The last part of the column's or key's name, in the order of preference: SB3 writes time/total_timesteps.
STEP_COLUMNS = (
    "step", "global_step", "_step", "steps", "iter", "iteration", "iterations", "global_iter", "n_iter", "num_updates",
    "updates", "total_timesteps", "timesteps", "num_timesteps", "timestep", "epoch", "epochs",
)  # fmt: skip
_TEXT_SUFFIXES = (".csv", ".jsonl", ".ndjson", ".json", ".txt", ".log")
_CHECKPOINT_FOLDER = re.compile(r"checkpoint-\d+")
_HISTORY = "trainer_state.json"
_MLFLOW_METRICS = "metrics"


class FoundSource(NamedTuple):
    """A source as `MetricsIngest.open_source` takes it."""

    kind: str
    path: str
    reading: Reading = Reading()


def may_be_source(path: PurePath) -> bool:
    """Return whether a file of this name may have metrics; `recognised` tells."""
    is_known = path.name.endswith(_TEXT_SUFFIXES) or _tracker_of(path.name) is not None
    return is_known or _MLFLOW_METRICS in path.parts


def recognised(path: Path, written: Collection[Path] | None = None) -> FoundSource | None:
    """The source that a file belongs to; None if it is none, or if too few of its lines are written to tell. An event
    file has a place below those of ``written`` alone, if they are known. Raises OSError."""
    tracker = _tracker_of(path.name)
    if tracker == "tensorboard":
        return FoundSource(tracker, str(path), Reading(place=subfolder_of_run(path.parent, written)))
    if tracker is not None:
        return FoundSource(tracker, str(path))
    if (name := _mlflow_name(path)) is not None:
        return FoundSource("mlflow", str(path), Reading(place=name))
    if path.name == _HISTORY:
        pattern = glob.escape(str(path))
        folder = path.parent.parent if _CHECKPOINT_FOLDER.fullmatch(path.parent.name) else path.parent
        if any(_CHECKPOINT_FOLDER.fullmatch(entry.name) for entry in folder.iterdir()):
            pattern = f"{glob.escape(str(folder))}/checkpoint-*/{_HISTORY}"
        return FoundSource("hf", pattern)
    if path.suffix not in _TEXT_SUFFIXES:
        return None
    lines = _first_lines(path)
    if len(lines) < 2:
        return None
    if path.suffix == ".csv":
        step = _csv_step(lines)
        if step is None:
            return None
        return FoundSource("csv", str(path), _reading(step))
    step = _json_step(lines)
    if step is None:
        return None
    return FoundSource("jsonl", str(path), _reading(step))


def _mlflow_name(path: Path) -> str | None:
    """The metric of a file in MLflow's file store, ``mlruns/<experiment>/<run>/metrics/<name>``; None for another
    file. A name with slashes is a folder."""
    for folder in path.parents:
        if folder.name == _MLFLOW_METRICS and (folder.parent / "meta.yaml").is_file():
            return path.relative_to(folder).as_posix()
    return None


def _tracker_of(name: str) -> str | None:
    for kind, record_format in TRACKERS.items():
        if fnmatch.fnmatchcase(name, PurePath(record_format.pattern).name):
            return kind
    return None


def _reading(step: str) -> Reading:
    if step == "step":
        return Reading()
    return Reading(step=step)


def _first_lines(path: Path) -> list[bytes]:
    """The first complete lines of a file. Raises OSError."""
    with open_regular(path) as file:
        head = file.read(_HEAD_BYTES)
    return [line for line in head.split(b"\n")[:-1] if line.strip()][:20]


def _csv_step(lines: Sequence[bytes]) -> str | None:
    """The column of the step in a CSV file whose header names metrics."""
    try:
        rows = list(csv.reader((line.decode("utf-8-sig").strip("\r") for line in lines), strict=True))
    except (UnicodeDecodeError, csv.Error):
        return None
    header = [cell.strip() for cell in rows[0]]
    records = [dict(zip(header, row, strict=False)) for row in rows[1:] if len(row) == len(header)]
    if len(set(header)) < len(header) or any(printed_number(name) is not None for name in header):
        return None
    numbers = [{name: printed_number(cell) for name, cell in record.items()} for record in records]
    return _step_of(numbers)


def _json_step(lines: Sequence[bytes]) -> str | None:
    """The key of the step in lines of JSON objects with metrics."""
    records = []
    for line in lines:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            return None
        if not isinstance(record, dict):
            return None
        records.append(record)
    return _step_of(records)


def _step_of(records: Sequence[Mapping[str, Any]]) -> str | None:
    """The name whose whole numbers count the records, which have other numbers too."""
    names: dict[str, str] = {}
    for record in records:
        for name in record:
            names.setdefault(name.rpartition("/")[2].lower(), name)
    for column in STEP_COLUMNS:
        if column not in names:
            continue
        name = names[column]
        steps = [record[name] for record in records if record.get(name) is not None]
        is_counter = all(type(step) in NUMBERS and float(step).is_integer() for step in steps)
        has_metrics = any(
            type(value) in NUMBERS
            for record in records
            for key, value in record.items()
            if key != name and key not in NOT_METRICS
        )
        if is_counter and has_metrics and steps and steps[0] <= steps[-1]:
            return name
    return None
