"""TensorBoard, MLflow and Weights & Biases, each fed through a queue by a thread, so that none delays a step.

One that fails is reported once on stderr, and gets no more values. Packages are imported when a run uses them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainer.config import Settings, as_plain, without_login
from trainer.errors import TrainerError, show
from trainer.telemetry.histograms import Histogram

EXPERIMENT = "trainer"
FLUSH_SECONDS = 2.0  # databases are fast with batches
QUEUE_LENGTH = 20_000  # calls: one for the numbers of a step, and one for each histogram
CLOSE_SECONDS = 10.0  # for the last values of all trackers; much less than torchrun's grace period


class Tracker:
    """A tracker and its thread, which opens it, makes the calls that were sent, flushes after each batch, closes it."""

    name = ""  # of its setting
    packages: tuple[str, ...] = ()

    def __init__(self, settings: Settings, *, flush_seconds: float = FLUSH_SECONDS, length: int = QUEUE_LENGTH) -> None:
        self.output_dir = settings.output_dir
        self.uri = settings.mlflow  # with its password, which `as_plain` leaves out
        self.settings = as_plain(settings)
        self.failed = False
        self.closing = threading.Event()
        self.good = True
        self._memory = self.output_dir / "trackers" / f"{self.name}.json"
        self._flush_seconds = flush_seconds
        self._queue: queue.Queue[Callable[[], None]] = queue.Queue(length)
        self.thread = threading.Thread(target=self._feed, name=f"trainer-{self.name}", daemon=True)
        self.thread.start()

    def open(self) -> None:
        """Connect, go on with the run of an earlier attempt if there is one, and record the settings."""

    def scalars(self, step: int, moment: float, values: Mapping[str, float]) -> None:
        """Add numbers of a step, which may come again after a resume; `moment` is UTC unix seconds."""

    def histogram(self, step: int, moment: float, histogram: Histogram) -> None: ...

    def flush(self) -> None:
        """Make all values so far visible."""

    def close(self, good: bool) -> None:
        """End the run, which succeeded or failed."""

    def send(self, call: Callable[[], None]) -> None:
        """Let the thread make a call; never waits or raises. Dropped after a failure or the end."""
        try:
            if not (self.failed or self.closing.is_set()):
                self._queue.put_nowait(call)
        except queue.Full:
            self.fail("it takes values too slowly")

    def fail(self, problem: str | BaseException) -> None:
        """Leave this tracker out from now on, and say so once."""
        if not self.failed:
            self.failed = True
            text = problem if isinstance(problem, str) else f"{type(problem).__name__}: {problem}"
            text = " ".join(text.split())[:300]
            show(f"trainer: {self.name} is left out from now on: {text}; the metrics file has all values", error=True)

    def recall(self) -> dict[str, str]:
        """Read what an earlier attempt in this output directory remembered."""
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads(self._memory.read_text()))
        return {}

    def remember(self, **values: str) -> None:
        self._memory.parent.mkdir(parents=True, exist_ok=True)
        self._memory.write_text(json.dumps(values))

    def _feed(self) -> None:
        try:
            self.open()
            try:
                last = False
                while not last:
                    last = self.closing.wait(self._flush_seconds)
                    with contextlib.suppress(queue.Empty):
                        while True:
                            self._queue.get_nowait()()
                    self.flush()
            except BaseException as error:
                self.fail(error)
            self.close(self.good and not self.failed)
        except BaseException as error:  # libraries may raise anything, even SystemExit; training must not end
            self.fail(error)


class TensorBoard(Tracker):
    """Event files in one folder; a resumed run adds a file, and TensorBoard shows them as one run."""

    name = "tensorboard"
    packages = ("tensorboard",)

    def open(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(self.output_dir / "tensorboard"))
        # An indented block is shown as it is.
        self._writer.add_text("settings", "    " + json.dumps(self.settings, indent=2).replace("\n", "\n    "))

    def scalars(self, step: int, moment: float, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        # One event for all values of a step: a tenth of the work of one event each.
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
        self._writer.file_writer.add_summary(summary, step, walltime=moment)

    def histogram(self, step: int, moment: float, histogram: Histogram) -> None:
        counted, mean, norm = sum(histogram.counts), histogram.mean or 0.0, histogram.norm or 0.0
        numbers = (histogram.min, histogram.max, counted, mean * counted, norm**2)
        tag, limits = f"{histogram.kind}/{histogram.name}", histogram.edges[1:]
        self._writer.add_histogram_raw(tag, *numbers, limits, histogram.counts, global_step=step, walltime=moment)

    def flush(self) -> None:
        self._writer.flush()

    def close(self, good: bool) -> None:
        self._writer.close()


class MLflow(Tracker):
    """A run in the experiment `trainer` of a tracking store. A resumed run continues in the same one."""

    name = "mlflow"
    packages = ("mlflow", "sqlalchemy", "alembic")

    def open(self) -> None:
        # Without it MLflow reports its use to its makers over the network; a person who wants that sets it to false.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.entities import Param, RunTag
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        for chatty in ("mlflow", "alembic"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
        self._client = MlflowClient(tracking_uri=self.uri)
        self._metrics: list[Any] = []
        self._run_id, store, remembered = "", without_login(self.uri), self.recall()
        if remembered.get("uri") == store:
            with contextlib.suppress(MlflowException):  # deleted; a store out of reach fails again for the new run
                self._client.update_run(remembered["run_id"], status="RUNNING")
                self._run_id = remembered["run_id"]
        if not self._run_id:
            found = self._client.get_experiment_by_name(EXPERIMENT)
            experiment = found.experiment_id if found else self._client.create_experiment(EXPERIMENT)
            run = self._client.create_run(experiment, run_name=self.output_dir.resolve().name)
            self._run_id = run.info.run_id
            self.remember(uri=store, run_id=self._run_id)
        texts = {name: str(value)[:5000] for name, value in self.settings.items()}  # its limit
        earlier: dict[str, str] = self._client.get_run(self._run_id).data.params
        # Parameters of a run never change there; tags record what a resumed attempt changes.
        new = [Param(name, text) for name, text in texts.items() if name not in earlier]
        changed = [RunTag(f"resumed.{name}", text) for name, text in texts.items() if earlier.get(name, text) != text]
        self._client.log_batch(self._run_id, params=new, tags=changed)

    def scalars(self, step: int, moment: float, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        self._metrics += [Metric(name, value, int(moment * 1000), step) for name, value in values.items()]

    def flush(self) -> None:
        self._client.log_batch(self._run_id, metrics=self._metrics)
        self._metrics.clear()

    def close(self, good: bool) -> None:
        self._client.set_terminated(self._run_id, status="FINISHED" if good else "FAILED")


class WeightsAndBiases(Tracker):
    """An offline run in OUTPUT_DIR/wandb; nothing is sent. ``wandb sync`` sends it, all attempts under one id."""

    name = "wandb"
    packages = ("wandb",)

    def open(self) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else it reports its own errors over the network
        import wandb

        self._wandb: Any = wandb
        private: Any = {"x_disable_meta": True, "x_disable_stats": True}
        run_id = self.recall().get("id") or secrets.token_hex(4)
        self.remember(id=run_id)  # which also makes the folder: given none, wandb takes another one
        self._run = wandb.init(
            mode="offline",
            project=EXPERIMENT,
            name=self.output_dir.resolve().name,
            id=run_id,
            dir=str(self.output_dir),
            config=self.settings,
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False, **private),
        )
        # Its own step only ever grows, while a resumed run repeats steps.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def scalars(self, step: int, moment: float, values: Mapping[str, float]) -> None:
        self._run.log({**values, "step": step})

    def histogram(self, step: int, moment: float, histogram: Histogram) -> None:
        drawn = self._wandb.Histogram(np_histogram=(list(histogram.counts), list(histogram.edges)))
        self._run.log({f"{histogram.kind}/{histogram.name}": drawn, "step": step})

    def close(self, good: bool) -> None:
        self._run.finish(exit_code=0 if good else 1)
        self._wandb.teardown()  # its process has ended then, with everything written


def start_trackers(settings: Settings) -> list[Tracker]:
    """The trackers that the settings ask for. Raises TrainerError if a package is missing."""
    chosen = [tracker for tracker in (TensorBoard, MLflow, WeightsAndBiases) if getattr(settings, tracker.name)]
    for tracker in chosen:
        for package in tracker.packages:
            if importlib.util.find_spec(package) is None:
                raise TrainerError(f"--{tracker.name} needs the package {package}: pip install 'gputui[trackers]'")
    return [tracker(settings) for tracker in chosen]


def close_all(trackers: Sequence[Tracker], good: bool = True, *, patience: float = CLOSE_SECONDS) -> None:
    """End all trackers' runs concurrently. Reports those that take longer than `patience` seconds."""
    for tracker in trackers:
        tracker.good = good
        tracker.closing.set()
    deadline = time.monotonic() + patience
    for tracker in trackers:
        tracker.thread.join(max(0.0, deadline - time.monotonic()))
        if tracker.thread.is_alive():
            tracker.fail(f"it did not take its last values within {patience:g} s")
