"""TensorBoard, MLflow and Weights & Biases as sinks. Their packages are imported when a run uses them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.config import Settings, without_login
from trainer.errors import SettingsError, TrainerError
from trainer.telemetry.histograms import Histogram
from trainer.telemetry.sinks import Sink

EXPERIMENT = "trainer"
# The most that one request to an MLflow server may hold (mlflow.org, REST API, "Log Batch").
_MLFLOW_METRICS, _MLFLOW_PARAMS, _MLFLOW_TAGS, _MLFLOW_TEXT = 1000, 100, 100, 5000


def wanted_sinks(settings: Settings) -> list[Sink]:
    """The trackers that the settings ask for; none of them connects yet.

    Raises TrainerError if a package is missing, SettingsError where MLflow would refuse its tracking URI.
    """
    sinks: list[Sink] = []
    if settings.tensorboard:
        _require("--tensorboard", "tensorboard")
        sinks.append(TensorBoard(settings.output_dir / "tensorboard"))
    if settings.mlflow:
        _require("--mlflow", "mlflow")
        _check_mlflow_uri(settings.mlflow)
        sinks.append(MLflow(settings.mlflow, settings.output_dir))
    if settings.wandb:
        _require("--wandb", "wandb")
        sinks.append(WeightsAndBiases(settings.output_dir))
    return sinks


def _require(flag: str, *packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise TrainerError(f"{flag} needs the package {package}: pip install 'gputui[trackers]'")


def _check_mlflow_uri(uri: str) -> None:
    scheme = uri.partition(":")[0] if ":" in uri else "file"
    if scheme == "file" and os.environ.get("MLFLOW_ALLOW_FILE_STORE", "").lower() not in ("true", "1"):
        raise SettingsError(
            f"--mlflow {uri}: MLflow no longer writes to folders unless MLFLOW_ALLOW_FILE_STORE=true is set; "
            "use a database, such as sqlite:///mlflow.db"
        )
    if scheme.partition("+")[0] in ("sqlite", "postgresql", "mysql", "mssql"):
        _require(f"--mlflow {scheme}:", "sqlalchemy", "alembic")


class TensorBoard:
    """Event files in one folder; a resumed run adds a file, and TensorBoard shows them as one run."""

    name = "TensorBoard"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def open(self) -> None:
        from torch.utils.tensorboard.writer import FileWriter

        self._folder.mkdir(parents=True, exist_ok=True)
        self._writer = FileWriter(str(self._folder))

    def settings(self, values: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard.summary import text

        # An indented block is shown as it is.
        lines = json.dumps(values, indent=2, default=str).splitlines()
        self._writer.add_summary(text("settings", "\n".join(f"    {line}" for line in lines)))  # type: ignore[no-untyped-call]

    def scalars(self, step: int, moment: float, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        # One event for all values of a step: a tenth of the work of one event each.
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
        self._writer.add_summary(summary, step, walltime=moment)

    def histogram(self, step: int, moment: float, histogram: Histogram) -> None:
        from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary

        if not histogram.total:
            return
        proto = HistogramProto(
            min=histogram.min,
            max=histogram.max,
            num=histogram.total,
            sum=(histogram.mean or 0.0) * histogram.total,
            sum_squares=(histogram.norm or 0.0) ** 2,
            bucket_limit=histogram.edges[1:],
            bucket=histogram.counts,
        )
        summary = Summary(value=[Summary.Value(tag=_histogram_name(histogram), histo=proto)])
        self._writer.add_summary(summary, step, walltime=moment)

    def flush(self) -> None:
        self._writer.flush()

    def close(self, good: bool) -> None:
        self._writer.close()


class MLflow:
    """A run in the experiment `trainer` of a tracking store. A resumed run continues in the same one."""

    name = "MLflow"

    def __init__(self, uri: str, output_dir: Path) -> None:
        self._uri = uri
        self._title = output_dir.resolve().name
        self._memory = output_dir / "trackers" / "mlflow.json"
        self._client: Any = None
        self._run_id = ""
        self._metrics: list[Any] = []

    def open(self) -> None:
        # Without it MLflow reports its use to its makers over the network; a person who wants that sets it to false.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.tracking import MlflowClient

        for chatty in ("mlflow", "alembic"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
        self._client = MlflowClient(tracking_uri=self._uri)
        self._run_id = self._earlier_run() or self._new_run()

    def settings(self, values: Mapping[str, Any]) -> None:
        from mlflow.entities import Param, RunTag

        texts = {name: str(value)[:_MLFLOW_TEXT] for name, value in values.items()}
        earlier: dict[str, str] = self._client.get_run(self._run_id).data.params
        new = [Param(name, text) for name, text in texts.items() if name not in earlier]
        # Parameters of a run never change there; tags record what a resumed attempt changes.
        changed = [RunTag(f"resumed.{name}", text) for name, text in texts.items() if earlier.get(name, text) != text]
        for start in range(0, len(new), _MLFLOW_PARAMS):
            self._client.log_batch(self._run_id, params=new[start : start + _MLFLOW_PARAMS])
        for start in range(0, len(changed), _MLFLOW_TAGS):
            self._client.log_batch(self._run_id, tags=changed[start : start + _MLFLOW_TAGS])

    def scalars(self, step: int, moment: float, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        self._metrics += [Metric(name, value, int(moment * 1000), step) for name, value in values.items()]

    def histogram(self, step: int, moment: float, histogram: Histogram) -> None:
        """MLflow has no histograms."""

    def flush(self) -> None:
        for start in range(0, len(self._metrics), _MLFLOW_METRICS):
            self._client.log_batch(self._run_id, metrics=self._metrics[start : start + _MLFLOW_METRICS])
        self._metrics.clear()

    def close(self, good: bool) -> None:
        self._client.set_terminated(self._run_id, status="FINISHED" if good else "FAILED")

    def _earlier_run(self) -> str:
        from mlflow.exceptions import MlflowException

        remembered = _recall(self._memory)
        if remembered.get("uri") != without_login(self._uri):
            return ""
        try:
            run = self._client.get_run(remembered["run_id"])
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return ""
            raise
        if run.info.lifecycle_stage != "active":
            return ""
        self._client.set_terminated(run.info.run_id, status="RUNNING")
        return str(run.info.run_id)

    def _new_run(self) -> str:
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(EXPERIMENT)
        run_id = str(self._client.create_run(experiment_id, run_name=self._title).info.run_id)
        _remember(self._memory, {"uri": without_login(self._uri), "run_id": run_id})
        return run_id


class WeightsAndBiases:
    """An offline run in OUTPUT_DIR/wandb; nothing is sent. ``wandb sync`` sends it, all attempts under one id."""

    name = "Weights & Biases"

    def __init__(self, output_dir: Path) -> None:
        self._output_dir = output_dir
        self._memory = output_dir / "trackers" / "wandb.json"
        self._run: Any = None

    def open(self) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else it reports its own errors over the network
        import wandb

        run_id = _recall(self._memory).get("id") or secrets.token_hex(4)
        _remember(self._memory, {"id": run_id})
        # Given a folder that does not exist, wandb takes another one.
        self._output_dir.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            mode="offline",
            project=EXPERIMENT,
            name=self._output_dir.resolve().name,
            id=run_id,
            dir=str(self._output_dir),
            settings=wandb.Settings(
                silent=True,
                console="off",
                reinit="create_new",
                disable_git=True,
                save_code=False,
                x_disable_meta=True,
                x_disable_stats=True,
            ),
        )
        # Its own step only ever grows, while a resumed run repeats steps.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def settings(self, values: Mapping[str, Any]) -> None:
        self._run.config.update(dict(values), allow_val_change=True)

    def scalars(self, step: int, moment: float, values: Mapping[str, float]) -> None:
        self._run.log({**values, "step": step})

    def histogram(self, step: int, moment: float, histogram: Histogram) -> None:
        import numpy as np
        import wandb

        if histogram.total:
            drawn = wandb.Histogram(np_histogram=(np.array(histogram.counts), np.array(histogram.edges)))
            self._run.log({_histogram_name(histogram): drawn, "step": step})

    def flush(self) -> None:
        """Every value goes to wandb's own process at once."""

    def close(self, good: bool) -> None:
        import wandb

        self._run.finish(exit_code=0 if good else 1)
        wandb.teardown()  # its process has ended then, with everything written


def _histogram_name(histogram: Histogram) -> str:
    return f"{histogram.kind}/{histogram.name}"


def _recall(path: Path) -> dict[str, str]:
    """What was remembered; nothing if there is no file or its content is no object of texts."""
    with contextlib.suppress(OSError, ValueError):
        content = json.loads(path.read_text())
        if isinstance(content, dict):
            return {str(name): str(value) for name, value in content.items()}
    return {}


def _remember(path: Path, values: Mapping[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(dict(values)))
    beside.replace(path)
