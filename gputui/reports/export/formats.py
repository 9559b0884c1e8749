"""The forms in which a run goes to other tools, and what each needs. Imports none of their libraries."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeGuard

Format = Literal["csv", "jsonl", "parquet", "tensorboard", "mlflow", "wandb"]


@dataclass(frozen=True, slots=True)
class FormatFacts:
    """``packages`` must be installed beside gputui, and come with its ``extra``. ``place`` is where a profile's sink
    writes unless told, None where it must say; ``seconds`` pass between two looks for something new at least."""

    packages: tuple[str, ...]
    extra: str
    place: str | None
    is_folder: bool
    seconds: float


FORMATS: Mapping[Format, FormatFacts] = {
    "csv": FormatFacts((), "", "{run_dir}/sinks/metrics.csv", False, 2.0),
    "jsonl": FormatFacts((), "", "{run_dir}/sinks/metrics.jsonl", False, 2.0),
    "parquet": FormatFacts(("pyarrow",), "train", "{run_dir}/sinks/metrics.parquet", False, 60.0),
    "tensorboard": FormatFacts(("tensorboard",), "trackers", "{run_dir}/sinks/tensorboard", True, 2.0),
    "mlflow": FormatFacts(("mlflow",), "trackers", None, False, 10.0),
    "wandb": FormatFacts(("wandb",), "trackers", "{run_dir}/sinks/wandb", True, 5.0),
}
# mlflow-skinny cannot write to SQLite without them.
_MLFLOW_SQLITE = ("sqlalchemy", "alembic")


def is_format(name: str) -> TypeGuard[Format]:
    return name in FORMATS


def is_uri(name: str) -> bool:
    """Whether the form's target is an address, not a path."""
    return name == "mlflow"


def missing_package(name: str, target: str) -> str | None:
    """What is missing to write this form, and how it is installed; None where all is there."""
    if not is_format(name):
        return f"this gputui does not write {name}"
    facts = FORMATS[name]
    extra = _MLFLOW_SQLITE if name == "mlflow" and target.startswith("sqlite:") else ()
    for package in (*facts.packages, *extra):
        if importlib.util.find_spec(package) is None:
            return f"this needs the package {package}: pip install 'gputui[{facts.extra}]'"
    return None
