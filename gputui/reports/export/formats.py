"""The forms in which a run goes to other tools, and what each needs. Imports none of their libraries."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeGuard

Format = Literal["csv", "jsonl", "parquet", "sqlite", "tensorboard", "mlflow", "wandb"]


@dataclass(frozen=True, slots=True)
class FormatFacts:
    """One form. A new one is a row here, its sink's file, a row in docs/metrics.md and a test.

    Attributes:
        sink: the class below this package that writes it, a `sink.Sink` made from a subject, a target and a key;
            imported when it is needed.
        place: where a profile's sink writes by default, None if the profile must name a place.
        packages: must be installed beside gputui, and come with its ``extra``; ``sqlite_packages`` too where the target
            is an address that begins with ``sqlite:``.
        is_folder: the target is a folder, not a file.
        is_address: the target is an address, not a path.
        unit: what is counted of it: lines of a file, steps of a tracker, or rows of tables.
        seconds: pass at least between two looks for something new.
        environment: variables that begin so are passed on from the profile and the launching shell, "" for none.
    """

    sink: str
    place: str | None
    packages: tuple[str, ...] = ()
    extra: str = ""
    sqlite_packages: tuple[str, ...] = ()
    is_folder: bool = False
    is_address: bool = False
    unit: Literal["line", "step", "row"] = "line"
    seconds: float = 2.0
    environment: str = ""


FORMATS: Mapping[Format, FormatFacts] = {
    "csv": FormatFacts("csv_sink:CsvSink", "{run_dir}/sinks/metrics.csv"),
    "jsonl": FormatFacts("jsonl_sink:JsonlSink", "{run_dir}/sinks/metrics.jsonl"),
    "parquet": FormatFacts(
        "parquet_sink:ParquetSink", "{run_dir}/sinks/metrics.parquet",
        packages=("pyarrow",), extra="train", seconds=60.0,
    ),
    "sqlite": FormatFacts("sqlite_sink:SqliteSink", "{run_dir}/sinks/run.sqlite", unit="row", seconds=60.0),
    "tensorboard": FormatFacts(
        "tensorboard_sink:TensorBoardSink", "{run_dir}/sinks/tensorboard",
        packages=("tensorboard",), extra="trackers", is_folder=True, unit="step",
    ),
    "mlflow": FormatFacts(
        "mlflow_sink:MlflowSink", None,
        # mlflow-skinny cannot write to SQLite without the two.
        packages=("mlflow",), extra="trackers", sqlite_packages=("sqlalchemy", "alembic"),
        is_address=True, unit="step", seconds=10.0, environment="MLFLOW_",
    ),
    "wandb": FormatFacts(
        "wandb_sink:WandbSink", "{run_dir}/sinks/wandb",
        packages=("wandb",), extra="trackers", is_folder=True, unit="step", seconds=5.0,
    ),
}  # fmt: skip


def is_format(name: str) -> TypeGuard[Format]:
    return name in FORMATS


def missing_package(name: str, target: str) -> str | None:
    """What is missing to write this form, and how it is installed; None if all is there."""
    if not is_format(name):
        return f"this gputui does not write {name}"
    facts = FORMATS[name]
    for package in (*facts.packages, *(facts.sqlite_packages if target.startswith("sqlite:") else ())):
        if importlib.util.find_spec(package) is None:
            return f"this needs the package {package}: pip install 'gputui[{facts.extra}]'"
    return None
