"""The trainer against a bare loop: the same model, data, batch, seed and machine, one after the other, again and again.

Runs of the two alternate, and pairs begin with one and the other in turn, so that a machine that gets slower or busier
favours neither.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.trainer import launch, window
from benchmarks.trainer.window import Window

_SAME = 1e-6  # relative, of losses after the same steps on a CPU

# What both do without: the bare loop knows neither.
_ONLY_STEPS = (
    *("--task", "lm", "--data", "synthetic", "--grad-accum", "1", "--schedule", "constant", "--warmup-steps", "0"),
    *("--checkpoint-every", "0", "--validate-every", "0"),
)


@dataclass(frozen=True)
class Workload:
    """The training of both. `ranks` 0 is one process without torchrun; `threads` None leaves those
    to torch."""

    settings: tuple[str, ...]
    batch_size: int
    ranks: int
    warm_steps: int
    steps: int
    device: str = "cpu"
    threads: int | None = 1

    @property
    def samples_per_step(self) -> int:
        return self.batch_size * max(1, self.ranks)

    def arguments(self) -> list[str]:
        steps = str(self.warm_steps + self.steps)
        samples = str(2 * max(1, self.ranks))
        sizes = ["--batch-size", str(self.batch_size), "--steps", steps, "--validate-samples", samples]
        return [*_ONLY_STEPS, "--device", self.device, *sizes, *self.settings]


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its steps, and the peak memory of its largest process."""

    window: Window
    rss_bytes: int


Runner = Callable[[Workload, Path], Run]


def run_trainer(workload: Workload, folder: Path) -> Run:
    command = launch.module(
        "trainer",
        *workload.arguments(),
        "--output-dir",
        str(folder / "trainer"),
        ranks=workload.ranks,
        cuda=workload.device == "cuda",
    )
    rss = launch.run(command, cuda=workload.device == "cuda", threads=workload.threads)
    return Run(window.of_trainer(window.metrics(folder / "trainer"), workload.warm_steps), rss)


def run_bare(workload: Workload, folder: Path) -> Run:
    result = folder / "bare.json"
    command = launch.module(
        "benchmarks.trainer.bare",
        str(result),
        str(workload.warm_steps),
        *workload.arguments(),
        ranks=workload.ranks,
        cuda=workload.device == "cuda",
    )
    rss = launch.run(command, cuda=workload.device == "cuda", threads=workload.threads)
    return Run(window.of_bare(result, workload.warm_steps), rss)


def compare(workload: Workload, pairs: int) -> dict[str, Any]:
    """Speeds and peaks of both, and medians over the pairs of how they compare.

    `ratio` is the trainer's speed as a share of the bare loop's, `overhead_seconds` what a step of the trainer takes
    longer. Raises CalledProcessError where a run fails, ValueError where the two did not do the same.
    """
    done = []
    for number in range(pairs):
        runners: list[Runner] = [run_trainer, run_bare]
        outcomes = {}
        for runner in runners if number % 2 == 0 else reversed(runners):
            with tempfile.TemporaryDirectory(prefix="gputui-bench-") as folder:
                outcomes[runner] = runner(workload, Path(folder))
        done.append((outcomes[run_trainer], outcomes[run_bare]))
    return summary(workload, done)


def summary(workload: Workload, pairs: Sequence[tuple[Run, Run]]) -> dict[str, Any]:
    """A summary of pairs of runs, the trainer's and the bare loop's."""
    ours, bare = zip(*pairs, strict=True)
    if workload.device == "cpu":
        for ours_run, bare_run in pairs:
            if not math.isclose(ours_run.window.loss, bare_run.window.loss, rel_tol=_SAME):
                raise ValueError(
                    f"the loops did not do the same: losses {ours_run.window.loss} and {bare_run.window.loss}"
                )
    ratios = [_seconds(bare_run) / _seconds(ours_run) for ours_run, bare_run in pairs]
    overheads = [_seconds(ours_run) - _seconds(bare_run) for ours_run, bare_run in pairs]
    seconds = statistics.median(map(_seconds, ours))
    bare_seconds = statistics.median(map(_seconds, bare))
    typical = [
        (one.window.median_seconds, other.window.median_seconds)
        for one, other in pairs
        if one.window.median_seconds and other.window.median_seconds
    ]
    peak, bare_peak = (max(map(_peak_bytes, runs)) for runs in (ours, bare))
    return {
        "pairs": len(pairs),
        "ranks": workload.ranks,
        "device": workload.device,
        "batch_size": workload.batch_size,
        "steps": ours[0].window.steps,
        "step_seconds": seconds,
        "bare_step_seconds": bare_seconds,
        "samples_per_s": workload.samples_per_step / seconds,
        "bare_samples_per_s": workload.samples_per_step / bare_seconds,
        "ratio": statistics.median(ratios),
        "ratio_spread": [min(ratios), max(ratios)],
        "ratio_of_medians": statistics.median(other / one for one, other in typical) if typical else None,
        "overhead_seconds": statistics.median(overheads),
        "overhead_spread": [min(overheads), max(overheads)],
        "overhead_of_medians_seconds": statistics.median(one - other for one, other in typical) if typical else None,
        "peak_bytes": peak,
        "bare_peak_bytes": bare_peak,
        "loss": ours[-1].window.loss,
        "bare_loss": bare[-1].window.loss,
    }


def _seconds(run: Run) -> float:
    return run.window.seconds_per_step


def _peak_bytes(run: Run) -> int:
    """On a GPU what tensors took there, else resident memory."""
    return run.window.gpu_peak_bytes or run.rss_bytes
