"""Well-known models on one GPU: samples a second, share of the GPU's peak, memory. Data is synthetic."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.trainer import launch, window
from benchmarks.trainer.window import Line

FULL_SIZE_BYTES = 140e9
"""GPU memory for which batch sizes are given; on smaller GPUs they shrink alike."""

_FAST = ("--deterministic", "false", "--precision", "bf16", "--compile", "default", "--grad-accum", "1")
_LANGUAGE = ("--data", "synthetic", "--synthetic-samples", "100000")


@dataclass(frozen=True)
class Model:
    """`batches` are tried one after the other, and the fastest counts. `per_sample` of what is counted are in one."""

    settings: tuple[str, ...]
    batches: tuple[int, ...]
    per_sample: int = 1


MODELS = {
    "resnet50": Model(
        (
            *("--task", "classify", "--model", "resnet50", "--data", "synthetic", "--image-size", "224"),
            *("--channels-last", "true", "--optimizer", "sgd", "--lr", "0.1"),
            *("--num-workers", str(max(1, min(8, (os.cpu_count() or 2) - 2))), "--prefetch", "4"),
        ),
        batches=(256,),
    ),
    "gpt2": Model(
        ("--task", "lm", "--model", "gpt2", "--context", "1024", "--lr", "6e-4", *_LANGUAGE),
        batches=(64, 32),
        per_sample=1024,
    ),
    "gpt2-medium": Model(
        ("--task", "lm", "--model", "gpt2-medium", "--context", "1024", "--lr", "3e-4", *_LANGUAGE),
        batches=(32, 16),
        per_sample=1024,
    ),
    "bert-large": Model(
        ("--task", "mlm", "--model", "bert-large", "--context", "128", "--lr", "1e-4", *_LANGUAGE),
        batches=(256,),
    ),
}

WARM_STEPS = 25  # compilation is in the first, the search for the fastest convolutions in the next few
STEPS = 80
SAVE_EVERY = 60
SAVES = 4


def speed(model: Model, *, warm_steps: int = WARM_STEPS, steps: int = STEPS, device: str = "cuda") -> dict[str, Any]:
    """The fastest of the model's batches. Raises CalledProcessError where none can be trained."""
    trials: list[dict[str, Any]] = []
    for batch in batches(model, launch.gpus()):
        lines, _ = _train(model, batch, warm_steps + steps, device, ("--checkpoint-every", "0"))
        trials.append(figures(model, batch, lines, warm_steps))
    return {
        **max(trials, key=lambda trial: trial["per_second"]),
        "tried": {trial["batch_size"]: trial for trial in trials},
    }


def figures(model: Model, batch: int, lines: Sequence[Line], warm_steps: int) -> dict[str, Any]:
    """A run's speed by its metrics lines, in wall-clock time."""
    window_figures = window.of_trainer(lines, warm_steps)
    last = window.step_lines(lines)[-1]
    samples_per_s = batch / window_figures.seconds_per_step
    share = last["mfu"] * samples_per_s / last["samples_per_s"] if "mfu" in last else None
    return {
        "batch_size": batch,
        "per_second": samples_per_s * model.per_sample,
        "mfu": share,
        "step_seconds": window_figures.seconds_per_step,
        "drift": window_figures.drift,
        "peak_bytes": window_figures.gpu_peak_bytes,
        "loss": window_figures.loss,
    }


def saving(
    model: Model,
    *,
    warm_steps: int = WARM_STEPS,
    save_every: int = SAVE_EVERY,
    saves: int = SAVES,
    device: str = "cuda",
) -> dict[str, Any]:
    """The extra time of steps behind an asynchronous checkpoint of a model in training.

    The first one also makes its host buffers. Later steps share the processor with the writing; `writing_ratio` is the
    speed of all steps, those that follow a checkpoint left out, as a share of the speed before the first.
    """
    batch = batches(model, launch.gpus())[0]
    steps = save_every * saves + save_every // 2
    lines, size = _train(
        model, batch, steps, device, ("--checkpoint-every", str(save_every), "--async-checkpoints", "true")
    )
    before = [line for line in window.step_lines(lines) if line["step"] <= save_every]
    usual = window.of_trainer(before, warm_steps).median_seconds
    all_steps = window.of_trainer(lines, warm_steps).median_seconds
    assert usual is not None
    assert all_steps is not None
    blocked = window.stalls(lines, usual)
    if not blocked:
        raise ValueError("no checkpoint was written within the run")
    said = [line["blocked_seconds"] for line in lines if line.get("event") == "checkpoint"]
    return {
        "batch_size": batch,
        "bytes": size,
        "saves": len(blocked),
        "first_blocked_seconds": blocked[0],
        "blocked_seconds": statistics.median(blocked[1:] or blocked),
        "said_blocked_seconds": said,
        "writing_ratio": usual / all_steps,
    }


def batches(model: Model, gpu: launch.Gpus | None) -> list[int]:
    """The batch sizes to try on this GPU, all different."""
    share = 1.0 if gpu is None else min(1.0, gpu.memory_bytes / FULL_SIZE_BYTES)
    return list(dict.fromkeys(max(1, int(batch * share)) for batch in model.batches))


def arguments(model: Model, batch: int, steps: int, device: str) -> list[str]:
    """The settings of a run, but for where its files go and when it saves."""
    sizes = ["--batch-size", str(batch), "--steps", str(steps), "--warmup-steps", "10"]
    rarely = ["--validate-every", "0", "--validate-samples", str(batch)]
    return [*_FAST, *model.settings, *sizes, *rarely, "--device", device]


def _train(model: Model, batch: int, steps: int, device: str, more: Sequence[str]) -> tuple[list[Line], int]:
    """A run in one process: its lines, and the bytes of its largest checkpoint."""
    with tempfile.TemporaryDirectory(prefix="gputui-bench-") as folder:
        chosen = [*arguments(model, batch, steps, device), *more, "--output-dir", folder]
        command = launch.module("trainer", *chosen, ranks=0)
        launch.run(command, cuda=device == "cuda", threads=None)
        lines = window.metrics(Path(folder))
        sizes = [line["bytes"] for line in lines if line.get("event") == "checkpoint" and "bytes" in line]
    return lines, max(sizes, default=0)
