"""What can be seen of a run from outside: the one thing the training loop talks to.

All ranks make the same calls. Rank 0 writes the lines of the run and feeds the trackers; the others write their own
timings. Nothing here stops the training once it has begun.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor, nn

from trainer.config import Settings, as_plain
from trainer.errors import SettingsError, TrainerError, show
from trainer.telemetry import histograms
from trainer.telemetry.bottleneck import Bottleneck, verdict
from trainer.telemetry.histograms import Histogram
from trainer.telemetry.sinks import SinkFeed, close_all
from trainer.telemetry.timing import MeanTimes, StepDurations
from trainer.telemetry.traces import Tracer, TraceSummary
from trainer.telemetry.trackers import wanted_sinks
from trainer.telemetry.writers import MetricsWriter, TextLog, Value
from trainer.world import World

# How a step's values are shown on the console, where they are known.
_SHOWN = (
    ("loss", "loss {:.4f}"),
    ("lr", "lr {:.2e}"),
    ("grad_norm", "grad_norm {:.3f}"),
    ("samples_per_s", "samples/s {:.0f}"),
    ("tokens_per_s", "tokens/s {:.0f}"),
    ("mfu", "mfu {:.1%}"),
)


class Telemetry:
    """Metrics lines, console, text log, trackers, histograms, traces and verdicts of one run.

    Made by all ranks at once (collective). Raises SettingsError if a file cannot be written and TrainerError where a
    tracker's package is missing, on all ranks alike.
    """

    def __init__(self, settings: Settings, world: World) -> None:
        self._settings = settings
        self._world = world
        self._total_steps = settings.steps
        self._main = world.is_main
        self._feeds: list[SinkFeed] = []
        self._text: TextLog | None = None
        self._histograms: MetricsWriter | None = None
        self._tracer = Tracer(settings.output_dir / "traces", world.device)
        self._since_line, self._since_verdict = MeanTimes(), MeanTimes()
        self._warm = False
        self._device_busy: float | None = None
        self._told: tuple[str, int | None] | None = None
        # Only one process may end a half line that a killed predecessor left, and before the others write.
        problem = self._try_to_open() if self._main else None
        problem = world.from_main(problem)
        if problem is not None:
            raise problem
        if not self._main:
            self._open(repair=False)

    def _try_to_open(self) -> TrainerError | None:
        try:
            sinks = wanted_sinks(self._settings)
            self._open(repair=True)
        except TrainerError as error:
            return error
        self._feeds = [SinkFeed(sink) for sink in sinks]
        for feed in self._feeds:
            feed.settings(as_plain(self._settings))
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
        """A phase begins, with its own settings and ranks. Files and trackers stay those of the run.

        `total_steps` are those of the run.
        """
        self._settings, self._world, self._total_steps = settings, world, total_steps
        self._since_line, self._since_verdict = MeanTimes(), MeanTimes()
        self._warm, self._device_busy = False, None
        try:
            self._open_histograms()
        except OSError as error:
            self.say(f"no histograms: {error.filename} cannot be written: {error.strerror}", error=True)

    # --- every step ---------------------------------------------------------------------------------------------------

    def step(self, step: int, values: Mapping[str, Value]) -> None:
        """Rank 0's line of a step; the other ranks write none. What is None is not known and left out.

        The vocabulary, times in seconds: ``epoch``, ``loss`` (mean over ranks and micro batches), ``lr``, ``grad_norm``
        (before clipping), ``samples`` (consumed so far), ``samples_per_s`` and ``tokens_per_s`` (of all ranks), ``mfu``
        (share of the peak, 0..1), ``step_time``, ``data_time``, ``comm_time``, ``gpu_mem_peak`` (bytes),
        ``loss_scale`` (fp16), ``cache_hit_rate`` (0..1). ``rank`` and ``phase`` are added here.
        """
        if not self._main:
            return
        known = {name: value for name, value in values.items() if value is not None}
        phase = {"phase": self._settings.phase} if self._settings.phase else {}
        self._metrics.write(step, rank=0, **phase, **known)
        self._feed(step, known)
        if step % self._settings.log_every == 0 or step == self._total_steps:
            self.say(progress(step, self._total_steps, known))

    def rank_timings(self, step: int, times: StepDurations) -> None:
        """Every rank's times of a step: for the verdict, and on other ranks than 0 for a line of means now and then."""
        settings = self._settings
        # The first step of a phase starts workers, compiles and allocates.
        if settings.bottleneck_every and self._warm and not self._disturbed(step):
            self._since_verdict.add(times)
        self._warm = True
        if self._main or not settings.rank_metrics_every:
            return
        self._since_line.add(times)
        if step % settings.rank_metrics_every == 0 and (mean := self._since_line.take()):
            exchange = {} if mean.exchange is None else {"comm_time": mean.exchange}
            self._metrics.write(step, rank=self._world.rank, step_time=mean.step, data_time=mean.data, **exchange)

    def bottleneck(self, step: int) -> Bottleneck | None:
        """At its interval the verdict on what limits the speed, on rank 0 (collective); None otherwise.

        The first step of a phase does not count, nor do steps that traces or histograms have slowed down.
        """
        every = self._settings.bottleneck_every
        if not every or step % every != 0:
            return None
        everybody = [times for times in self._world.gather(self._since_verdict.take()) if times is not None]
        if not self._main or not everybody:
            return None
        result = verdict(everybody, on_gpu=self._world.device.type == "cuda", device_busy=self._device_busy)
        slow: dict[str, Value] = {} if result.straggler is None else {"straggler": result.straggler}
        self.event(step, "bottleneck", kind=result.kind, sentence=result.sentence, **result.figures, **slow)
        if self._told != (result.kind, result.straggler):
            self._told = (result.kind, result.straggler)
            self.say(f"bottleneck at step {step}: {result.sentence}")
        return result

    # --- now and then -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def observe(self, step: int, model: nn.Module) -> Iterator[None]:
        """Around a step's forward, backward and update: records a trace and activations of `model` where they are due.

        `model` is the inner one. Only rank 0 records; a step for which nothing is due costs a microsecond.
        """
        trace, histogram = self._trace_due(step), self._histogram_due(step)
        if not self._main or not (trace or histogram):
            yield
            return
        with contextlib.ExitStack() as stack:
            recording = stack.enter_context(self._tracer.record(step)) if trace else None
            # A compiled module does not call hooks that come later.
            watched = histogram and self._settings.compile == "off"
            activations = stack.enter_context(histograms.watch_activations(model)) if watched else []
            yield
        self._write_histograms(step, activations)
        if recording and recording.summary:
            self._tell_trace(step, recording.summary)
        elif recording:
            self.say(recording.error, error=True)

    def wants_histograms(self, step: int) -> bool:
        """Whether `gradients` would do anything on this rank."""
        return self._main and self._histogram_due(step)

    def gradients(self, step: int, gradients: Mapping[str, Tensor], model: nn.Module) -> None:
        """Histograms of this rank's gradients by parameter name, where they are due; between unscaling and clipping."""
        if self.wants_histograms(step):
            self._write_histograms(step, histograms.gradients(gradients, histograms.blocks_of(model)))

    def validation(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        """What was measured on held-out data: ``val/loss``, ``val/accuracy``, …"""
        self.event(step, "validation", **values, seconds=seconds)
        if self._main:
            self._feed(step, values)

    def event(self, step: int, name: str, /, **values: Value) -> None:
        """A line about the run rather than a step; from rank 0."""
        if not self._main:
            return
        self._metrics.write(step, event=name, **values)
        if self._text:
            details = " ".join(f"{key}={value}" for key, value in values.items())
            self._text.write(f"step {step} {name} {details}".rstrip())

    def say(self, text: str, *, error: bool = False) -> None:
        """A line for the person watching; from rank 0."""
        if self._main:
            self._print(f"trainer: {text}" if error else text, error)

    def warn(self, text: str) -> None:
        """A trouble that this rank alone has met, whichever it is."""
        self._print(f"trainer: {text}" if self._main else f"trainer: rank {self._world.rank}: {text}", error=True)

    def skipped(self, step: int, reasons: Sequence[str]) -> None:
        """Samples that could not be read, on whichever rank that was."""
        for reason in reasons:
            self._metrics.write(step, event="sample_skipped", rank=self._world.rank, reason=reason)
            self.warn(reason)

    def close(self, *, good: bool = True) -> None:
        """Ends the trackers' runs and closes the files; `good` is whether the run ended as it should."""
        close_all(self._feeds, good)
        for file in (self._metrics, self._histograms, self._text):
            if file is not None:
                file.close()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _trace_due(self, step: int) -> bool:
        every = self._settings.trace_every
        return every > 0 and step % every == 0

    def _histogram_due(self, step: int) -> bool:
        """A histogram gives way to a trace by one step, which would otherwise show the work of making histograms."""
        every = self._settings.histograms_every
        if not every:
            return False
        wanted = step % every == 0 and not self._trace_due(step)
        return wanted or ((step - 1) % every == 0 and step > 1 and self._trace_due(step - 1))

    def _disturbed(self, step: int) -> bool:
        """Whether rank 0 was busy with recording, or the others waited for it, in this step."""
        return self._trace_due(step) or (step > 1 and self._trace_due(step - 1)) or self._histogram_due(step)

    def _write_histograms(self, step: int, found: list[Histogram]) -> None:
        for one in found:
            if self._histograms:
                self._histograms.write(step, **vars(one))
            for feed in self._feeds:
                feed.histogram(step, one)

    def _tell_trace(self, step: int, summary: TraceSummary) -> None:
        self._device_busy = summary.device_busy
        if self._world.device.type == "cuda" and summary.device_busy is None:
            self.say(f"{summary.path} shows no work of the GPU: the profiler could not see it", error=True)
        top = "; ".join(f"{cost.name} {cost.seconds:.3g} s" for cost in summary.top[:3])
        busy: dict[str, Value] = {} if summary.device_busy is None else {"device_busy": summary.device_busy}
        self.event(step, "trace", path=str(summary.path), seconds=summary.seconds, top=top, **busy)

    def _feed(self, step: int, values: Mapping[str, Value]) -> None:
        if self._feeds:
            numbers = {name: float(value) for name, value in values.items() if isinstance(value, float | int)}
            for feed in self._feeds:
                feed.scalars(step, numbers)

    def _print(self, text: str, error: bool) -> None:
        show(text, error=error)
        if self._text:
            self._text.write(text, error=error)


def progress(step: int, steps: int, values: Mapping[str, Value]) -> str:
    """A step in one line for a person."""
    shown = [form.format(values[name]) for name, form in _SHOWN if values.get(name) is not None]
    return "  ".join([f"step {step}/{steps}", *shown])
