"""The formats of exports and what each needs. Imports none of their libraries."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeGuard

from msgspec import Struct

Format = Literal["csv", "jsonl", "parquet", "sqlite", "tensorboard", "mlflow", "wandb"]
LOCAL_DATABASE = "sqlite:///"
"""The begin of an address that is followed by the path of a file."""


class FormatFacts(Struct, frozen=True):
    """A format. A new one needs its name in `Format`, a row here, a file for its sink, a row in
    docs/profiles.md, a test.

    Attributes:
        sink: the `sink.Sink` in this package, as module:class; imported when needed.
        place: the default target of a profile's sink; None if the profile must name one.
        packages: required packages, which the ``extra`` of gputui installs; ``sqlite_packages`` as
            well for a target that begins with ``sqlite:``.
        is_folder: the target is a folder, not a file.
        is_address: the target is an address, not a path.
        unit: what is counted: lines of a file, steps of a tracker, or rows of tables.
        seconds: the minimum time between two updates.
        environment: the prefix of variables to pass on from the profile and the launching shell.
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
    "csv": FormatFacts("table_sinks:CsvSink", "{run_dir}/sinks/metrics.csv"),
    "jsonl": FormatFacts("jsonl_sink:JsonlSink", "{run_dir}/sinks/metrics.jsonl"),
    "parquet": FormatFacts(
        "table_sinks:ParquetSink", "{run_dir}/sinks/metrics.parquet",
        packages=("pyarrow",), extra="train", seconds=60.0,
    ),
    "sqlite": FormatFacts(
        "sqlite_sink:SqliteSink", "{run_dir}/sinks/run.sqlite", unit="row", seconds=60.0
    ),
    "tensorboard": FormatFacts(
        "tensorboard_sink:TensorBoardSink", "{run_dir}/sinks/tensorboard",
        packages=("tensorboard",), extra="trackers", is_folder=True, unit="step",
    ),
    "mlflow": FormatFacts(
        "mlflow_sink:MlflowSink", None,
        # mlflow-skinny needs the two to write to SQLite.
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
    """The package that this format lacks, and the command that installs it; None if nothing is."""
    if not is_format(name):
        return f"this gputui does not write {name}"
    facts = FORMATS[name]
    more = facts.sqlite_packages if target.startswith("sqlite:") else ()
    for package in (*facts.packages, *more):
        if importlib.util.find_spec(package) is None:
            return f"this needs the package {package}: pip install 'gputui[{facts.extra}]'"
    return None


def absolute_target(name: Format, target: str, base: Path) -> str:
    """A target relative to ``base``, made absolute."""
    if not FORMATS[name].is_address:
        return str(base / Path(target).expanduser())
    if target.startswith(LOCAL_DATABASE) and not target.startswith(f"{LOCAL_DATABASE}/"):
        return f"{LOCAL_DATABASE}{base / target.removeprefix(LOCAL_DATABASE)}"
    return target
