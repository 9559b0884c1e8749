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
from gputui.metrics.formats import HISTORY, Reading
from gputui.metrics.trackers import TRACKERS, Tracker
from gputui.metrics.values import NUMBERS, printed_number
from gputui.store.metrics.stored_lines import NOT_METRICS

_HEAD_BYTES = 64 << 10  # one read, also from a network disk
_HEAD_LINES = 20  # a header and some rows tell the format
# The last part of the column's or key's name, in the order of preference: SB3 writes time/total_timesteps.
STEP_COLUMNS = (
    "step", "global_step", "_step", "steps", "iter", "iteration", "iterations", "global_iter", "n_iter", "num_updates",
    "updates", "total_timesteps", "timesteps", "num_timesteps", "timestep", "epoch", "epochs",
)  # fmt: skip
_TEXT_SUFFIXES = (".csv", ".jsonl", ".ndjson", ".json", ".txt", ".log")
_CHECKPOINT_FOLDER = re.compile(r"checkpoint-\d+")
_HISTORY_FILE = "trainer_state.json"
_MLFLOW_METRICS = "metrics"


class FoundSource(NamedTuple):
    """A source as `MetricsIngest.open_source` takes it."""

    kind: str
    path: str
    reading: Reading = Reading()


def may_be_source(path: PurePath) -> bool:
    """Return whether a file of this name may have metrics; `recognised` tells."""
    is_known = path.name.endswith(_TEXT_SUFFIXES) or _tracker_of(path) is not None
    return is_known or _MLFLOW_METRICS in path.parts


def recognised(path: Path, written: Collection[Path] | None = None) -> FoundSource | None:
    """The source that a file belongs to; None if it is none, or if too few of its lines are written to tell.

    Args:
        written: The files that the run has written, if they are known: only these tell the folder of a tracker's run.

    Raises:
        OSError: The file or its folder cannot be read.
    """
    tracker = _tracker_of(path)
    if tracker is not None:
        return FoundSource(tracker.kind, str(path), Reading(place=tracker.subfolder_of(path, written)))
    if (name := _mlflow_name(path)) is not None:
        return FoundSource("mlflow", str(path), Reading(place=name))
    if path.name == _HISTORY_FILE:
        pattern = glob.escape(str(path))
        folder = path.parent
        if _CHECKPOINT_FOLDER.fullmatch(folder.name):
            folder = folder.parent
        if any(_CHECKPOINT_FOLDER.fullmatch(entry.name) for entry in folder.iterdir()):
            pattern = f"{glob.escape(str(folder))}/checkpoint-*/{_HISTORY_FILE}"
        return FoundSource(HISTORY, pattern)
    if path.suffix not in _TEXT_SUFFIXES:
        return None
    lines = _first_lines(path)
    if len(lines) < 2:
        return None
    kind = "jsonl"
    records = _json_records(lines)
    if path.suffix == ".csv":
        kind = "csv"
        records = _csv_records(lines)
    step_name = _step_name(records)
    if step_name is None:
        return None
    if step_name == "step":
        return FoundSource(kind, str(path))
    return FoundSource(kind, str(path), Reading(step=step_name))


def _mlflow_name(path: Path) -> str | None:
    """The metric of a file in MLflow's file store, ``mlruns/<experiment>/<run>/metrics/<name>``; None for another
    file. A name with slashes is a folder."""
    for folder in path.parents:
        if folder.name == _MLFLOW_METRICS and (folder.parent / "meta.yaml").is_file():
            return path.relative_to(folder).as_posix()
    return None


def _tracker_of(path: PurePath) -> Tracker | None:
    """The tracker whose files have this name."""
    for tracker in TRACKERS.values():
        if fnmatch.fnmatchcase(path.name, PurePath(tracker.pattern).name):
            return tracker
    return None


def _first_lines(path: Path) -> list[bytes]:
    """The first complete lines of a file. Raises OSError."""
    with open_regular(path) as file:
        head = file.read(_HEAD_BYTES)
    return [line for line in head.split(b"\n")[:-1] if line.strip()][:_HEAD_LINES]


def _csv_records(lines: Sequence[bytes]) -> Sequence[Mapping[str, Any]]:
    """The numbers of a CSV file's first lines by column; none if its header is not one of names."""
    try:
        rows = list(csv.reader((line.decode("utf-8-sig").strip("\r") for line in lines), strict=True))
    except (UnicodeDecodeError, csv.Error):
        return []
    header = [cell.strip() for cell in rows[0]]
    if len(set(header)) < len(header) or any(printed_number(name) is not None for name in header):
        return []
    records = [dict(zip(header, row, strict=False)) for row in rows[1:] if len(row) == len(header)]
    return [{name: printed_number(cell) for name, cell in record.items()} for record in records]


def _json_records(lines: Sequence[bytes]) -> Sequence[Mapping[str, Any]]:
    """The lines as JSON objects; none if one is something else."""
    records = []
    for line in lines:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            return []
        if not isinstance(record, dict):
            return []
        records.append(record)
    return records


def _step_name(records: Sequence[Mapping[str, Any]]) -> str | None:
    """The name whose whole numbers count the records, which have other numbers too."""
    names: dict[str, str] = {}
    for record in records:
        for name in record:
            names.setdefault(name.rpartition("/")[2].lower(), name)
    for column in STEP_COLUMNS:
        if column in names and _counts(names[column], records):
            return names[column]
    return None


def _counts(name: str, records: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a column or key counts the steps of records with metrics."""
    steps = [record[name] for record in records if record.get(name) is not None]
    if not steps or not all(type(step) in NUMBERS and float(step).is_integer() for step in steps):
        return False
    # Steps may begin again with each epoch, but what ends lower than it began counts down, or is an index.
    has_fallen = steps[-1] < steps[0]
    return not has_fallen and any(
        type(value) in NUMBERS
        for record in records
        for key, value in record.items()
        if key != name and key not in NOT_METRICS
    )
