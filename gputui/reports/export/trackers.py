"""A run for TensorBoard, MLflow and Weights & Biases, written by their own libraries; nothing is sent anywhere.

Values of ranks other than the first go under ``rank<N>/``: these tools know no ranks.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gputui.reports.export.subject import ExportError, Subject, require

EXPERIMENT = "gputui"
# The most that one request to an MLflow server may hold (mlflow.org, REST API, "Log Batch").
_MLFLOW_METRICS, _MLFLOW_PARAMS, _MLFLOW_TEXT = 1000, 100, 5000
# What MLflow takes in names; it refuses a whole batch for one other character, which becomes an underscore.
_MLFLOW_ODD = re.compile(r"[^\w./ :-]", re.ASCII)

Step = tuple[int, float, dict[str, float]]


def steps(subject: Subject) -> Iterator[Step]:
    """(step, unix seconds, values) of every line that has a step and any of the metrics."""
    for line in subject.lines():
        if line.step is None:
            continue
        prefix = f"rank{line.rank}/" if line.rank else ""
        numbers = line.numbers()
        values = {f"{prefix}{name}": numbers[name] for name in subject.metrics if name in numbers}
        if values:
            yield line.step, line.at if line.at is not None else subject.run.created_at, values


def write_tensorboard(subject: Subject, target: Path) -> int:
    """Event files in a folder. Returns the steps written. Raises ExportError."""
    require("tensorboard", "trackers")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    _new_folder(target)
    writer = EventFileWriter(str(target))
    count = 0
    for step, moment, values in steps(subject):
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
        writer.add_event(Event(wall_time=moment, step=step, summary=summary))
        count += 1
    writer.close()
    return count


def write_mlflow(subject: Subject, uri: str) -> int:
    """A run in the experiment ``gputui`` of a tracking store. Returns the steps written. Raises ExportError."""
    for package in ("mlflow", "sqlalchemy", "alembic") if uri.startswith("sqlite:") else ("mlflow",):
        require(package, "trackers")
    # Without it MLflow reports its use to its makers over the network.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.entities import Metric, Param
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    for chatty in ("mlflow", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    run = subject.run
    count = 0
    try:
        client: Any = MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name(EXPERIMENT)
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(EXPERIMENT)
        tags = {"gputui.run": run.run_id, "gputui.profile": run.profile, "gputui.state": run.state}
        run_id = client.create_run(
            experiment_id, start_time=round(run.created_at * 1000), tags=tags, run_name=run.run_id
        ).info.run_id
        params = [Param(_mlflow_name(name), str(value)[:_MLFLOW_TEXT]) for name, value in subject.params.items()]
        for start in range(0, len(params), _MLFLOW_PARAMS):
            client.log_batch(run_id, params=params[start : start + _MLFLOW_PARAMS])
        waiting: list[Any] = []
        for step, moment, values in steps(subject):
            waiting += [Metric(_mlflow_name(name), value, round(moment * 1000), step) for name, value in values.items()]
            count += 1
            while len(waiting) >= _MLFLOW_METRICS:
                client.log_batch(run_id, metrics=waiting[:_MLFLOW_METRICS])
                del waiting[:_MLFLOW_METRICS]
        client.log_batch(run_id, metrics=waiting)
        status = {"succeeded": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}.get(run.state, "RUNNING")
        ended = None if run.ended_at is None else round(run.ended_at * 1000)
        client.set_terminated(run_id, status=status, end_time=ended)
    except MlflowException as error:
        raise ExportError(f"MLflow refuses {_without_login(uri)}: {' '.join(str(error).split())[:300]}") from error
    return count


def write_wandb(subject: Subject, target: Path) -> int:
    """An offline run below a folder, for ``wandb sync``. Returns the steps written. Raises ExportError."""
    require("wandb", "trackers")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else it reports its own errors over the network
    import wandb

    _new_folder(target)
    run = wandb.init(
        mode="offline",
        project=EXPERIMENT,
        name=subject.run.run_id,
        group=subject.run.profile,
        config=dict(subject.params),
        dir=str(target),
        settings=wandb.Settings(
            silent=True, console="off", reinit="create_new", disable_git=True, save_code=False, x_disable_meta=True,
            x_disable_stats=True,
        ),
    )  # fmt: skip
    # Its own step only ever grows, while a resumed run repeats steps.
    run.define_metric("step", hidden=True)
    run.define_metric("*", step_metric="step")
    count = 0
    for step, moment, values in steps(subject):
        run.log({**values, "step": step, "time": moment})
        count += 1
    run.finish(exit_code=0 if subject.run.state in ("succeeded", "running") else 1)
    wandb.teardown()  # its process has ended then, with everything written
    return count


def _mlflow_name(name: str) -> str:
    return _MLFLOW_ODD.sub("_", name)


def _new_folder(target: Path) -> None:
    """A folder of its own: these tools take everything in one folder for one run."""
    try:
        if target.is_dir() and any(target.iterdir()):
            raise ExportError(f"{target} is not empty; choose another place with --out")
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(f"cannot write to {target}: {error.strerror}; choose another place with --out") from error


def _without_login(uri: str) -> str:
    """The address without name and password."""
    scheme, mark, rest = uri.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"
