"""The best checkpoint so far, and the record beside it.

``best_model.json`` is for people, and has the value that a resumed run must beat. It also has the checkpoint's hash: if
a process died between writing the two, the hashes differ, and the metrics are read from the checkpoint itself.
"""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.checkpoints import durable, files, hashes, names
from trainer.errors import CheckpointError

_LOWER_IS_BETTER = ("loss", "perplexity")


@dataclass(frozen=True)
class Record:
    """A best checkpoint: its file, its step, and all metrics known at that step."""

    path: Path
    step: int
    metrics: dict[str, Any]


def is_better(metric: str, value: float, best: float | None) -> bool:
    """Whether `value` beats `best` (None: no value yet). A value that is not finite beats nothing."""
    if not math.isfinite(value):
        return False
    if best is None:
        return True
    return value < best if metric.endswith(_LOWER_IS_BETTER) else value > best


def record_file(path: Path) -> Path:
    """The path of the record of a best checkpoint. Other checkpoints have no such file."""
    return path.with_suffix(".json")


def best_value(directory: Path, metric: str) -> float | None:
    """The value to beat: the metric of the best valid checkpoint; None if there is none with this metric."""
    found = record(directory)
    value = found.metrics.get(metric) if found else None
    if found is None or not isinstance(value, int | float) or not hashes.is_valid(found.path):
        return None
    return float(value) if math.isfinite(value) else None


def write_record(path: Path, state: files.State, metric: str, value: float) -> None:
    """Write the record of the best checkpoint `path`, which holds `state`. Raises OSError."""
    digest = hashes.read(path)[0].sha256
    content = {
        "metric": metric,
        "value": value,
        "step": state["step"],
        "file": path.name,
        "sha256": digest,
        "metrics": state["metrics"],
        "settings": state.get("config", {}),
    }
    durable.replace(record_file(path), f"{json.dumps(content, indent=2, default=str)}\n".encode())


def record(directory: Path) -> Record | None:
    """The best checkpoint of a directory, verified or not; None if there is none."""
    path = names.best_file(directory)
    if not path.exists():
        return None
    try:
        digest = hashes.read(path)[0].sha256
        with contextlib.suppress(OSError, ValueError):
            content = json.loads(record_file(path).read_text(encoding="utf-8"))
            if isinstance(content, dict) and content.get("sha256") == digest:
                return Record(path, int(content["step"]), dict(content["metrics"]))
        state = files.read(path)
    except CheckpointError:
        return None
    return Record(path, int(state["step"]), dict(state.get("metrics", {})))
