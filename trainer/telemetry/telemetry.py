"""All output of a run: metrics, console, histograms, traces.

All ranks make the same calls. Rank 0 writes the lines of the run; others write their timings.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from trainer.config import Settings, unfold
from trainer.errors import SettingsError, show
from trainer.telemetry import histograms
from trainer.telemetry.bottleneck import record, verdict
from trainer.telemetry.histograms import Histogram
from trainer.telemetry.speed import StepDurations, means
from trainer.world import World

Value = float | int | str | None

_ON_CONSOLE = {
    "loss": ".4f",
    "lr": ".2e",
    "grad_norm": ".3f",
    "samples_per_s": ".0f",
    "tokens_per_s": ".0f",
    "mfu": ".1%",
}


class Telemetry:
    """The output of one run. All ranks construct it together (collective).

    Raises SettingsError if a file cannot be written: on all ranks if it is rank 0's.
    """

    def __init__(self, settings: Settings, world: World) -> None:
        self._main = world.is_main
        self._histograms: MetricsWriter | None = None
        self._last_verdict: tuple[str, int | None] | None = None
        self.enter(settings, world, settings.steps)
        # Rank 0 is first: it ends an incomplete line of a killed process before others write.
        world.on_main(lambda: self._open(settings))
        if not self._main:
            self._open(settings)

    def _open(self, settings: Settings) -> None:
        path = settings.metrics
        try:
            self._metrics = MetricsWriter(path, repair=self._main)
            path = settings.output_dir / "histograms.jsonl"
            if self._main and any(phase.histograms_every for phase in unfold(settings)):
                self._histograms = MetricsWriter(path)
        except OSError as error:
            flag = "--metrics " if path == settings.metrics else ""
            raise SettingsError(f"{flag}{path} cannot be written: {error.strerror}") from None

    def enter(self, settings: Settings, world: World, total_steps: int) -> None:
        """Start a phase with its settings and ranks; files stay. `total_steps` counts the whole run."""
        self._settings = settings
        self._world = world
        self._total_steps = total_steps
        self._since_line: list[StepDurations] = []
        self._since_verdict: list[StepDurations] = []
        self._warm = False
        self._device_busy: float | None = None

    def step(self, step: int, values: Mapping[str, Value]) -> None:
        """Write a step's metrics, on rank 0, named as in docs/trainer.md."""
        if not self._main:
            return
        self._metrics.write(step, rank=0, phase=self._settings.phase or None, **values)
        if step % self._settings.log_every == 0 or step == self._total_steps:
            figures = [(name, values.get(name), form) for name, form in _ON_CONSOLE.items()]
            parts = [f"{name} {value:{form}}" for name, value, form in figures if value is not None]
            self.say("  ".join([f"step {step}/{self._total_steps}", *parts]).replace("_per_s", "/s"))

    def rank_timings(self, step: int, times: StepDurations) -> None:
        """Add a rank's times of a step to its means; ranks other than 0 write them every --rank-metrics-every steps."""
        settings = self._settings
        # Not the first step of a phase, which starts workers and compiles, nor those that recording slows down.
        recorded = any(_due(step - late, settings.trace_every) for late in (0, 1)) or self._histogram_due(step)
        if settings.bottleneck_every and self._warm and not recorded:
            self._since_verdict.append(times)
        self._warm = True
        if self._main or not settings.rank_metrics_every:
            return
        self._since_line.append(times)
        if _due(step, settings.rank_metrics_every):
            mean = means(self._since_line)
            self._since_line = []
            times_of_rank = {"step_time": mean.step, "data_time": mean.data, "comm_time": mean.exchange}
            self._metrics.write(step, rank=self._world.rank, **times_of_rank)

    def bottleneck(self, step: int) -> None:
        """Every --bottleneck-every steps, log on rank 0 what limits the speed (collective)."""
        if not _due(step, self._settings.bottleneck_every):
            return
        own_means = means(self._since_verdict) if self._since_verdict else None
        self._since_verdict = []
        all_times = [times for times in self._world.gather(own_means) if times is not None]
        if self._main and all_times:
            limit = verdict(all_times, on_gpu=self._world.device.type == "cuda", device_busy=self._device_busy)
            figures = {**limit.figures, "straggler": limit.straggler}
            self.event(step, "bottleneck", kind=limit.kind, sentence=limit.sentence, **figures)
            if self._last_verdict != (limit.kind, limit.straggler):
                self._last_verdict = (limit.kind, limit.straggler)
                self.say(f"bottleneck at step {step}: {limit.sentence}")

    @contextlib.contextmanager
    def observe(self, step: int, model: nn.Module) -> Iterator[None]:
        """Inside, which is a whole step, record a trace or activations of the unwrapped model on rank 0 if due."""
        settings = self._settings
        trace = None
        activations = []
        with contextlib.ExitStack() as stack:
            if self._main and _due(step, settings.trace_every):
                path = settings.output_dir / "traces" / f"step_{step:08d}.json.gz"
                trace = stack.enter_context(record(path, self._world.device))
            if self.wants_histograms(step) and settings.compile == "off":  # a compiled module ignores later hooks
                compares = settings.task == "contrastive"
                activations = stack.enter_context(histograms.watch_activations(model, vectors=compares))
            yield
        self._write_histograms(step, activations)
        if not trace:
            return
        self._device_busy = busy = trace.device_busy
        if trace.error:
            self.say(trace.error, error=True)
            return
        if self._world.device.type == "cuda" and busy is None:
            self.say(f"{trace.path} shows no work of the GPU: the profiler could not see it", error=True)
        top = "; ".join(f"{name} {seconds:.3g} s" for name, seconds in trace.top)
        self.event(step, "trace", path=str(trace.path), seconds=trace.seconds, top=top, device_busy=busy)

    def wants_histograms(self, step: int) -> bool:
        return self._main and self._histogram_due(step)

    def gradients(self, step: int, gradients: Mapping[str, Tensor]) -> None:
        """Write histograms of this rank's gradients. Call it between unscaling and clipping."""
        self._write_histograms(step, histograms.gradients(gradients))

    def embeddings(self, step: int, model: nn.Module, names: Mapping[Tensor, str]) -> None:
        """Write histograms of the model's embeddings, by the names of its parameters."""
        self._write_histograms(step, histograms.embeddings(model, names))

    def event(self, step: int, name: str, /, **values: Value) -> None:
        """Write an event of the run, on rank 0."""
        if self._main:
            self._metrics.write(step, event=name, **values)

    def say(self, text: str, *, error: bool = False) -> None:
        """Print a line, on rank 0."""
        if self._main:
            prefix = "trainer: " if error else ""
            show(f"{prefix}{text}", error=error)

    def warn(self, text: str) -> None:
        """Print a problem of this rank, on any rank."""
        prefix = "" if self._main else f"rank {self._world.rank}: "
        show(f"trainer: {prefix}{text}", error=True)

    def skipped(self, step: int, reasons: Sequence[str]) -> None:
        """Write an event for each sample that this rank could not read."""
        for reason in reasons:
            self._metrics.write(step, event="sample_skipped", rank=self._world.rank, reason=reason)
            self.warn(reason)

    def close(self) -> None:
        for file in (self._metrics, self._histograms):
            if file is not None:
                file.close()

    def _histogram_due(self, step: int) -> bool:
        """Histograms move to the next step if a trace is due, which would show their cost."""
        settings = self._settings
        if _due(step, settings.histograms_every):
            return not _due(step, settings.trace_every)
        return _due(step - 1, settings.histograms_every) and _due(step - 1, settings.trace_every)

    def _write_histograms(self, step: int, new: list[Histogram]) -> None:
        for histogram in new:
            if self._histograms:
                self._histograms.write(step, **vars(histogram))


class MetricsWriter:
    """A file of JSON lines, each a single appending write, so that those of several ranks never mix.

    A failed write (a full disk, a removed folder) is reported once and never stops training.
    """

    def __init__(self, path: Path, *, repair: bool = True) -> None:
        """Open it. `repair` ends an incomplete line of a killed process, before others write. Raises OSError."""
        self._path = path
        self._failed = False
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab+", buffering=0)
        self._half_line = False  # the file ends in one, which the next line must not continue
        if repair and self._file.tell():
            self._half_line = os.pread(self._file.fileno(), 1, self._file.tell() - 1) != b"\n"

    def write(self, step: int, /, **values: Value | Sequence[float]) -> None:
        """Append a line, with its UTC unix time. None is unknown, and left out; NaN is written as NaN."""
        present = {name: value for name, value in values.items() if value is not None}
        try:
            line = json.dumps({"step": step, "time": round(time.time(), 6), **present}).encode() + b"\n"
            if self._half_line:
                line = b"\n" + line
            written = self._file.write(line)
            self._half_line = written != len(line)
            if self._half_line:
                raise OSError(f"only {written} of {len(line)} bytes were written")
        except (OSError, TypeError, ValueError) as error:
            if not self._failed:
                show(f"trainer: cannot write metrics to {self._path}: {error}; training goes on", error=True)
            self._failed = True

    def close(self) -> None:
        self._file.close()


def _due(step: int, every: int) -> bool:
    return every > 0 and step > 0 and step % every == 0
