"""The measurements of the trainer by name, and their sizes."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from benchmarks.trainer import launch, line, models
from benchmarks.trainer.comparing import Workload, compare

STATE_MEGABYTES = 500.0

# One step takes about a tenth of a second on one thread.
ON_CPU = Workload(
    ("--model", "bytes", "--width", "192", "--depth", "4", "--context", "128"),
    batch_size=4,
    ranks=2,
    warm_steps=10,
    steps=60,
)
# So little to compute that what is around a step shows.
TRIVIAL = ("--model", "bytes", "--width", "32", "--depth", "1", "--context", "8")
_SHOWN_LINES = 5  # of what a program that failed has said
_FAST = ("--deterministic", "false", "--precision", "bf16", "--compile", "default")


def against_bare_on_cpu(pairs: int = 7) -> dict[str, Any]:
    return compare(ON_CPU, pairs)


def against_bare_compiled(pairs: int = 5) -> dict[str, Any]:
    return compare(dataclasses.replace(ON_CPU, settings=(*ON_CPU.settings, "--compile", "default")), pairs)


def against_bare_on_gpu(pairs: int = 3) -> dict[str, Any]:
    """GPT-2, on as many GPUs as there are."""
    gpu = launch.gpus()
    if gpu is None:
        return no_gpu()
    gpt2 = models.MODELS["gpt2"]
    settings = ("--model", "gpt2", "--context", "1024", "--synthetic-samples", "100000", *_FAST)
    batch = models.batches(gpt2, gpu)[-1]
    ranks = gpu.count if gpu.count > 1 else 0
    return compare(
        Workload(settings, batch, ranks, models.WARM_STEPS, models.STEPS, device="cuda", threads=None), pairs
    )


def around_a_step(ranks: int, device: str = "cpu", pairs: int = 5, steps: int = 1500) -> dict[str, Any]:
    if device == "cuda" and launch.gpus() is None:
        return no_gpu()
    deterministic = () if device == "cpu" else ("--deterministic", "false")
    return compare(Workload((*TRIVIAL, *deterministic), 1, ranks, 100, steps, device=device), pairs)


def telemetry(steps: int = 200) -> dict[str, Any]:
    figures: dict[str, Any] = launch.child("benchmarks.trainer.telemetry", str(steps), *ON_CPU.arguments(), cuda=False)
    return figures


def checkpoint(device: str = "cpu", megabytes: float = STATE_MEGABYTES, times: int = 5) -> dict[str, Any]:
    if device == "cuda" and launch.gpus() is None:
        return no_gpu()
    figures: dict[str, Any] = launch.child(
        "benchmarks.trainer.checkpointing", str(megabytes), str(times), device, cuda=device == "cuda"
    )
    return figures


def model_speed(name: str) -> dict[str, Any]:
    return no_gpu() if launch.gpus() is None else models.speed(models.MODELS[name])


def checkpoint_in_training() -> dict[str, Any]:
    return no_gpu() if launch.gpus() is None else models.saving(models.MODELS["gpt2"])


def no_gpu() -> dict[str, Any]:
    return {"why_not": "no CUDA GPU is visible to torch"}


PARTS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "step": against_bare_on_cpu,
    "step-compiled": against_bare_compiled,
    "around": lambda: around_a_step(ranks=0),
    "around-two-ranks": lambda: around_a_step(ranks=2),
    "line": line.measure,
    "telemetry": telemetry,
    "checkpoint": checkpoint,
    "gpu-step": against_bare_on_gpu,
    "gpu-around": lambda: around_a_step(ranks=0, device="cuda"),
    "gpu-checkpoint": lambda: checkpoint("cuda"),
    "gpu-checkpoint-in-training": checkpoint_in_training,
    **{name: lambda name=name: model_speed(name) for name in models.MODELS},  # type: ignore[misc]
}
"""Those that need a GPU say so where there is none."""


def measure(names: Sequence[str] = (), parts: Mapping[str, Callable[[], dict[str, Any]]] = PARTS) -> dict[str, Any]:
    """The named parts, or all of them. One that fails says why under ``failed``, and the others are still measured."""
    if missing := [name for name in ("torch", "pydantic", "numpy") if find_spec(name) is None]:
        return {"why_not": f"{missing[0]} is not installed"}
    results: dict[str, Any] = {}
    for name in names or parts:
        print(f"measuring trainer {name} …", file=sys.stderr, flush=True)
        began = time.monotonic()
        try:
            results[name] = {**parts[name](), "took_seconds": time.monotonic() - began}
        except subprocess.CalledProcessError as error:
            said = " / ".join(str(error.stderr).strip().splitlines()[-_SHOWN_LINES:])
            results[name] = {"failed": f"exit status {error.returncode}: {said}"}
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            results[name] = {"failed": str(error) or type(error).__name__}
    return results
