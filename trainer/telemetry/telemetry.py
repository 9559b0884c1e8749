"""All output of a run: metrics, console, text log, trackers, histograms, traces.

All ranks make the same calls. Rank 0 writes the lines of the run and feeds the trackers; the others write their own
timings. After the start, no failure here stops training.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor, nn

from trainer.config import Settings
from trainer.errors import SettingsError, TrainerError, show
from trainer.telemetry import histograms, traces
from trainer.telemetry.histograms import Histogram
from trainer.telemetry.speed import Bottleneck, verdict
from trainer.telemetry.timing import StepDurations, means
from trainer.telemetry.trackers import Tracker, close_all, start_trackers
from trainer.telemetry.writers import MetricsWriter, TextLog, Value
from trainer.world import World

# The values of a step on the console, and their formats.
_CONSOLE_FORMATS = (
    ("loss", "loss {:.4f}"),
    ("lr", "lr {:.2e}"),
    ("grad_norm", "grad_norm {:.3f}"),
    ("samples_per_s", "samples/s {:.0f}"),
    ("tokens_per_s", "tokens/s {:.0f}"),
    ("mfu", "mfu {:.1%}"),
)


class Telemetry:
    """The output of one run. All ranks construct it together (collective).

    Raises SettingsError if a file cannot be written, and TrainerError if a tracker's package is missing: on all ranks
    if it is rank 0's, else on the rank that cannot write.
    """

    def __init__(self, settings: Settings, world: World) -> None:
        self._settings = settings
        self._world = world
        self._total_steps = settings.steps
        self._main = world.is_main
        self._trackers: list[Tracker] = []
        self._text: TextLog | None = None
        self._histograms: MetricsWriter | None = None
        self._since_line: list[StepDurations] = []
        self._since_verdict: list[StepDurations] = []
        self._warm = False
        self._device_busy: float | None = None
        self._last_verdict: tuple[str, int | None] | None = None
        # Rank 0 is first: it ends an incomplete line of a killed process before others write.
        problem = self._try_to_open() if self._main else None
        problem = world.from_main(problem)
        if problem is not None:
            raise problem
        if not self._main:
            self._open(repair=False)

    def _try_to_open(self) -> TrainerError | None:
        try:
            self._open(repair=True)
            self._trackers = start_trackers(self._settings)
        except TrainerError as error:
            return error
        return None

    def _open(self, *, repair: bool) -> None:
        settings = self._settings
        try:
            self._metrics = MetricsWriter(settings.metrics, repair=repair)
        except OSError as error:
            raise SettingsError(f"--metrics {settings.metrics} cannot be written: {error.strerror}") from None
        try:
            if settings.text_log:
                self._text = TextLog(settings.output_dir / "logs", self._world.rank)
            self._open_histograms()
        except OSError as error:
            raise SettingsError(f"{error.filename} cannot be written: {error.strerror}") from None

    def _open_histograms(self) -> None:
        if self._settings.histograms_every and self._main and self._histograms is None:
            self._histograms = MetricsWriter(self._settings.output_dir / "histograms.jsonl")

    def enter(self, settings: Settings, world: World, total_steps: int) -> None:
        """Start a phase with its settings and ranks; files and trackers stay. `total_steps` counts the whole run."""
        self._settings, self._world, self._total_steps = settings, world, total_steps
        self._since_line, self._since_verdict = [], []
        self._warm, self._device_busy = False, None
        try:
            self._open_histograms()
        except OSError as error:
            self.say(f"no histograms: {error.filename} cannot be written: {error.strerror}", error=True)

    # --- every step ---------------------------------------------------------------------------------------------------

    def step(self, step: int, values: Mapping[str, Value]) -> None:
        """Write a step's metrics, on rank 0. Values that are None are unknown and left out.

        Names, with times in seconds: ``epoch``, ``loss`` (mean over ranks and micro batches), ``lr``, ``grad_norm``
        (before clipping), ``samples`` (consumed so far), ``samples_per_s`` and ``tokens_per_s`` (of all ranks), ``mfu``
        (share of the peak, 0..1), ``step_time``, ``data_time``, ``comm_time``, ``gpu_mem_peak`` (bytes),
        ``loss_scale`` (fp16), ``cache_hit_rate`` (0..1). ``rank`` and ``phase`` are added.
        """
        if not self._main:
            return
        present = {name: value for name, value in values.items() if value is not None}
        phase = {"phase": self._settings.phase} if self._settings.phase else {}
        self._metrics.write(step, rank=0, **phase, **present)
        self._feed(step, present)
        if step % self._settings.log_every == 0 or step == self._total_steps:
            self.say(progress(step, self._total_steps, present))

    def rank_timings(self, step: int, times: StepDurations) -> None:
        """Add a rank's times of a step to its means; ranks other than 0 write them every --rank-metrics-every steps."""
        settings = self._settings
        # Not the first step of a phase, which starts workers, compiles and allocates.
        if settings.bottleneck_every and self._warm and not self._disturbed(step):
            self._since_verdict.append(times)
        self._warm = True
        if self._main or not settings.rank_metrics_every:
            return
        self._since_line.append(times)
        if step % settings.rank_metrics_every == 0 and (mean := means(self._since_line)):
            self._since_line = []
            exchange = {} if mean.exchange is None else {"comm_time": mean.exchange}
            self._metrics.write(step, rank=self._world.rank, step_time=mean.step, data_time=mean.data, **exchange)

    def bottleneck(self, step: int) -> Bottleneck | None:
        """Every --bottleneck-every steps, log and return what limits the speed, on rank 0 (collective); else None.

        The first step of a phase does not count, nor do steps with traces or histograms.
        """
        every = self._settings.bottleneck_every
        if not every or step % every != 0:
            return None
        own, self._since_verdict = means(self._since_verdict), []
        all_times = [times for times in self._world.gather(own) if times is not None]
        if not self._main or not all_times:
            return None
        result = verdict(all_times, on_gpu=self._world.device.type == "cuda", device_busy=self._device_busy)
        slow: dict[str, Value] = {} if result.straggler is None else {"straggler": result.straggler}
        self.event(step, "bottleneck", kind=result.kind, sentence=result.sentence, **result.figures, **slow)
        if self._last_verdict != (result.kind, result.straggler):
            self._last_verdict = (result.kind, result.straggler)
            self.say(f"bottleneck at step {step}: {result.sentence}")
        return result

    # --- at intervals, and events -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def observe(self, step: int, model: nn.Module) -> Iterator[None]:
        """Inside, which is a whole step, record a trace and activations of `model` on rank 0 if they are due.

        `model` is the unwrapped one.
        """
        trace, histogram = self._trace_due(step), self._histogram_due(step)
        if not self._main or not (trace or histogram):
            yield
            return
        with contextlib.ExitStack() as stack:
            path = self._settings.output_dir / "traces" / f"step_{step:08d}.json.gz"
            recording = stack.enter_context(traces.record(path, self._world.device)) if trace else None
            # A compiled module ignores hooks that are added later.
            watched = histogram and self._settings.compile == "off"
            activations = stack.enter_context(histograms.watch_activations(model)) if watched else []
            yield
        self._write_histograms(step, activations)
        if recording and recording.error:
            self.say(recording.error, error=True)
        elif recording:
            self._log_trace(step, recording)

    def wants_histograms(self, step: int) -> bool:
        """Whether `gradients` writes anything in this step on this rank."""
        return self._main and self._histogram_due(step)

    def gradients(self, step: int, gradients: Mapping[str, Tensor]) -> None:
        """Write histograms of this rank's gradients if they are due. Call it between unscaling and clipping."""
        if self.wants_histograms(step):
            self._write_histograms(step, histograms.gradients(gradients))

    def validation(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        """Write the results of a validation: ``val/loss``, ``val/accuracy``, …"""
        self.event(step, "validation", **values, seconds=seconds)
        if self._main:
            self._feed(step, values)

    def event(self, step: int, name: str, /, **values: Value) -> None:
        """Write an event of the run, on rank 0."""
        if not self._main:
            return
        self._metrics.write(step, event=name, **values)
        if self._text:
            details = " ".join(f"{key}={value}" for key, value in values.items())
            self._text.write(f"step {step} {name} {details}".rstrip())

    def say(self, text: str, *, error: bool = False) -> None:
        """Print a line, on rank 0."""
        if self._main:
            self._print(f"trainer: {text}" if error else text, error)

    def warn(self, text: str) -> None:
        """Print a problem of this rank, on any rank."""
        self._print(f"trainer: {text}" if self._main else f"trainer: rank {self._world.rank}: {text}", error=True)

    def skipped(self, step: int, reasons: Sequence[str]) -> None:
        """Write an event for each sample that this rank could not read."""
        for reason in reasons:
            self._metrics.write(step, event="sample_skipped", rank=self._world.rank, reason=reason)
            self.warn(reason)

    def close(self, *, good: bool = True) -> None:
        """End the trackers' runs and close the files. `good`: the run succeeded."""
        close_all(self._trackers, good)
        for file in (self._metrics, self._histograms, self._text):
            if file is not None:
                file.close()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _trace_due(self, step: int) -> bool:
        every = self._settings.trace_every
        return every > 0 and step % every == 0

    def _histogram_due(self, step: int) -> bool:
        """Histograms move to the next step if a trace is due, which would show their cost."""
        every = self._settings.histograms_every
        if not every:
            return False
        on_time = step % every == 0 and not self._trace_due(step)
        return on_time or ((step - 1) % every == 0 and step > 1 and self._trace_due(step - 1))

    def _disturbed(self, step: int) -> bool:
        """Whether recording on rank 0 slowed down this step, on any rank."""
        return self._trace_due(step) or (step > 1 and self._trace_due(step - 1)) or self._histogram_due(step)

    def _write_histograms(self, step: int, new: list[Histogram]) -> None:
        for histogram in new:
            if self._histograms:
                self._histograms.write(step, **vars(histogram))
            if histogram.total:
                for tracker in self._trackers:
                    tracker.send(functools.partial(tracker.histogram, step, time.time(), histogram))

    def _log_trace(self, step: int, trace: traces.Trace) -> None:
        self._device_busy = trace.device_busy
        if self._world.device.type == "cuda" and trace.device_busy is None:
            self.say(f"{trace.path} shows no work of the GPU: the profiler could not see it", error=True)
        top = "; ".join(f"{name} {seconds:.3g} s" for name, seconds in trace.top)
        busy: dict[str, Value] = {} if trace.device_busy is None else {"device_busy": trace.device_busy}
        self.event(step, "trace", path=str(trace.path), seconds=trace.seconds, top=top, **busy)

    def _feed(self, step: int, values: Mapping[str, Value]) -> None:
        if self._trackers:
            numbers = {name: float(value) for name, value in values.items() if isinstance(value, float | int)}
            for tracker in self._trackers:
                tracker.send(functools.partial(tracker.scalars, step, time.time(), numbers))

    def _print(self, text: str, error: bool) -> None:
        show(text, error=error)
        if self._text:
            self._text.write(text, error=error)


def progress(step: int, steps: int, values: Mapping[str, Value]) -> str:
    """A step as a line for the console."""
    parts = [form.format(values[name]) for name, form in _CONSOLE_FORMATS if values.get(name) is not None]
    return "  ".join([f"step {step}/{steps}", *parts])
