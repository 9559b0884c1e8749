"""What several GPUs are good for, on a machine that has them: ``python -m benchmarks.scaling --cifar10 DIR``.

Each part trains one thing with 1, 2, … GPUs, as a person would start it, and reads what the runs wrote:

- ``resnet18``: three epochs of CIFAR-10 in steps of 512 images: accuracy, and how much faster two GPUs are than one;
- ``smollm``: SmolLM-135M's shape with the same samples a step: the loss must not depend on the number of GPUs;
- ``gpt2``: GPT-2 124M with the same batch on each GPU: the share of linear scaling;
- ``fsdp``: memory of a sharded model of 1.3 B parameters, and what that says about one of 10 B.

Exit status: 0 all was measured, 1 a part failed, 2 usage, 3 there are too few GPUs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import figures
from benchmarks.figures import Figure
from benchmarks.trainer import launch

NAME = "scaling"
FIGURES: tuple[Figure, ...] = (
    Figure(NAME, "ResNet-18, CIFAR-10, 3 epochs: accuracy", "", ("resnet18", "accuracy"), 0.6, "at least"),
    Figure(NAME, "ResNet-18: speed of 2 GPUs over 1", "×", ("resnet18", "speedup", "2"), 1.7, "at least"),
    Figure(NAME, "SmolLM-135M: loss of 2 GPUs over 1", "×", ("smollm", "loss_ratio"), 1.01, "at most"),
    Figure(NAME, "GPT-2 124M, 2 GPUs: share of linear scaling", "", ("gpt2", "efficiency", "2"), 0.8, "at least"),
    Figure(NAME, "GPT-2 124M, 4 GPUs: share of linear scaling", "", ("gpt2", "efficiency", "4"), 0.8, "at least"),
    Figure(NAME, "FSDP, 1.3 B parameters: peak memory of a GPU", "MB", ("fsdp", "peak_bytes")),
    Figure(NAME, "FSDP, 1.3 B: weights, gradients and AdamW alone", "MB", ("fsdp", "state_bytes")),
    Figure(NAME, "FSDP, 10 B on as many GPUs: expected peak", "MB", ("fsdp", "expected_bytes_of_10_b")),
)
_WARM_SHARE = 0.25  # of a run's steps, in which it compiles, fills caches and finds its speed
_LAST_LOSSES = 10  # whose mean is a run's loss: one of them varies by more than the runs do
# fp32 weights, gradients and both of AdamW's moments.
_STATE_BYTES_PER_PARAMETER = 16
_LARGE_MODEL = {"n_embd": 2048, "n_layer": 24, "n_head": 16}
_TINY_MODEL = {"n_embd": 32, "n_layer": 2, "n_head": 2}
_TINY_LLAMA = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
               "num_key_value_heads": 2}  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """How to measure: on which numbers of GPUs, or of processes on the CPU where it is `quick`, and with which data."""

    gpus: Sequence[int]
    quick: bool
    cifar10: Path | None
    text: Path | None

    @property
    def most(self) -> int:
        return max(self.gpus)

    def train(self, count: int, *flags: str) -> list[dict[str, Any]]:
        """The lines that a run with so many GPUs wrote. Raises CalledProcessError where it fails."""
        device = "cpu" if self.quick else "cuda"
        with tempfile.TemporaryDirectory(prefix="gputui-scaling-") as folder:
            common = ("--output-dir", folder, "--device", device, "--deterministic", "false", "--checkpoint-every", "0")
            command = launch.module("trainer", *common, *flags, ranks=count, cuda=not self.quick)
            launch.run(command, cuda=not self.quick)
            lines = (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]


def resnet18(trial: Trial) -> dict[str, Any]:
    data: tuple[str, ...] = ("--data", "synthetic", "--synthetic-samples", "256", "--image-size", "8")
    length: tuple[str, ...] = ("--epochs", "0.5", "--samples-per-step", "16", "--batch-size", "16")
    if not trial.quick:
        if trial.cifar10 is None:
            return {"why_not": "give --cifar10, the folder of CIFAR-10's binary version"}
        data = ("--data", "cifar10", "--data-dir", str(trial.cifar10), "--num-workers", "4")
        length = ("--epochs", "3", "--samples-per-step", "512", "--batch-size", "512", "--precision", "bf16")
    recipe = ("--model", "resnet18", "--augment", "--optimizer", "sgd", "--lr", "0.2", "--weight-decay", "0.0005")
    runs = {count: trial.train(count, *data, *length, *recipe, "--validate-every", "0") for count in trial.gpus}
    accuracies = [_event(lines, "end")["test_accuracy"] for lines in runs.values()]
    return {"accuracy": min(accuracies), "speedup": _over_one(runs)}


def smollm(trial: Trial) -> dict[str, Any]:
    options: tuple[str, ...] = ("--model-options", json.dumps(_TINY_LLAMA), "--context", "32", "--steps", "8")
    batches: tuple[str, ...] = ("--samples-per-step", "4", "--batch-size", "2")
    if not trial.quick:
        options = ("--context", "1024", "--steps", "150", "--precision", "bf16")
        batches = ("--samples-per-step", "64", "--batch-size", "8", "--gradient-checkpointing", "full")
    data: tuple[str, ...] = ("--data", "stdlib")
    if trial.text is not None:
        data = ("--data", "text", "--data-dir", str(trial.text))
    flags = ("--task", "lm", "--model", "smollm-135m", *data, *options, *batches, "--validate-every", "0")
    losses = {}
    for count in (1, 2):
        lines = [line["loss"] for line in _steps(trial.train(count, *flags))]
        losses[count] = statistics.mean(lines[-_LAST_LOSSES:])
    return {"losses": losses, "loss_ratio": max(losses.values()) / min(losses.values())}


def gpt2(trial: Trial) -> dict[str, Any]:
    flags: tuple[str, ...] = ("--model-options", json.dumps(_TINY_MODEL), "--context", "32", "--batch-size", "2")
    if not trial.quick:
        flags = ("--context", "1024", "--batch-size", "16", "--precision", "bf16", "--compile", "default")
    length = ("--grad-accum", "1", "--steps", "8" if trial.quick else "80", "--validate-samples", "2")
    model = ("--task", "lm", "--model", "gpt2", "--data", "synthetic", "--validate-every", "0")
    runs = {count: trial.train(count, *model, *flags, *length) for count in trial.gpus}
    return {"efficiency": {count: speedup / int(count) for count, speedup in _over_one(runs).items()}}


def fsdp(trial: Trial) -> dict[str, Any]:
    flags: tuple[str, ...] = ("--model-options", json.dumps(_TINY_MODEL), "--context", "32", "--batch-size", "2")
    if not trial.quick:
        flags = ("--model-options", json.dumps(_LARGE_MODEL), "--context", "1024", "--batch-size", "4")
        flags += ("--precision", "bf16", "--gradient-checkpointing", "full")
    model = ("--task", "lm", "--model", "gpt2", "--data", "synthetic", "--parallel", "fsdp", "--validate-every", "0")
    length = ("--steps", "4", "--grad-accum", "1", "--validate-samples", "2")
    lines = trial.train(trial.most, *model, *flags, *length)
    parameters = _event(lines, "start")["parameters"]
    state_bytes = _STATE_BYTES_PER_PARAMETER * parameters / trial.most
    peaks = [line["gpu_mem_peak"] for line in _steps(lines) if "gpu_mem_peak" in line]
    measured: dict[str, Any] = {"gpus": trial.most, "parameters": parameters, "state_bytes": state_bytes}
    if peaks:
        beside = max(peaks) - state_bytes  # activations, gathered blocks and torch itself
        # A block of a 10 B model (width 4096 instead of 2048) holds four times as much, its activations twice.
        expected = _STATE_BYTES_PER_PARAMETER * 10e9 / trial.most + 4 * beside
        measured |= {"peak_bytes": max(peaks), "expected_bytes_of_10_b": expected}
    return measured


PARTS: Mapping[str, Callable[[Trial], dict[str, Any]]] = {
    "resnet18": resnet18,
    "smollm": smollm,
    "gpt2": gpt2,
    "fsdp": fsdp,
}


def _steps(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rank 0's lines of steps."""
    return [line for line in lines if "loss" in line and "event" not in line]


def _event(lines: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(line for line in lines if line.get("event") == name)


def _over_one(runs: Mapping[int, Sequence[dict[str, Any]]]) -> dict[str, float]:
    """The median speed of each run after its beginning over that of one GPU, by the number of GPUs as text."""
    speeds = {}
    for count, lines in runs.items():
        values = [line["samples_per_s"] for line in _steps(lines)]
        speeds[count] = statistics.median(values[int(len(values) * _WARM_SHARE) :])
    return {str(count): speed / speeds[1] for count, speed in speeds.items()}


def measure(names: Sequence[str], trial: Trial) -> dict[str, Any]:
    """What each part measured; of one that failed why."""
    results: dict[str, Any] = {}
    for name in names or PARTS:
        try:
            results[name] = PARTS[name](trial)
        except (subprocess.SubprocessError, OSError, LookupError, ValueError) as error:
            said = str(getattr(error, "stderr", None) or error).strip().splitlines()
            results[name] = {"failed": [type(error).__name__, *said][-1]}
    return results


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"which: {', '.join(PARTS)}; else all")
    parser.add_argument("--cifar10", type=Path, metavar="DIR", help="CIFAR-10's binary version, for resnet18")
    parser.add_argument("--text", type=Path, metavar="DIR", help="text for smollm; default: Python's own source")
    parser.add_argument("--gpus", default="1,2,4", help="numbers of GPUs, with 1 among them (1,2,4)")
    parser.add_argument("--quick", action="store_true", help="tiny models on CPUs, to try it out: nothing is a figure")
    parser.add_argument("--json", type=Path, default=Path("scaling.json"), help="everything measured (scaling.json)")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.parts if name not in PARTS]:
        parser.error(f"there is no part named {unknown[0]}; there are {', '.join(PARTS)}")
    try:
        counts = sorted({int(count) for count in args.gpus.split(",")})
    except ValueError:
        parser.error(f"--gpus takes numbers such as 1,2,4, not {args.gpus}")
    if counts[0] != 1 or len(counts) < 2:
        parser.error("--gpus needs 1, to compare with, and a larger number")
    machine = launch.gpus()
    there = machine.count if machine else 0
    if not args.quick:
        counts = [count for count in counts if count <= there]
        if len(counts) < 2:
            print(f"benchmarks.scaling: {there} GPUs are there, 2 or more are needed", file=sys.stderr)
            return 3
    results = {NAME: measure(args.parts, Trial(counts, args.quick, args.cifar10, args.text))}
    described = {"gpu": machine.name if machine else None, "gpus": counts, "measured_on_gpus": not args.quick}
    args.json.write_text(json.dumps({"machine": described, **results}, indent=2) + "\n", encoding="utf-8")
    taken = [figure for figure in figures.asked_for(FIGURES, results) if figure.path[0] in results[NAME]]
    rows = [figures.row(figure, results) for figure in taken]
    print(figures.layout([["figure", "ours", "aim", "reached"], *rows]))
    if args.quick:
        print("tried with tiny models on CPUs: nothing above is a figure")
    failed = figures.texts_under(results, "failed")
    for text in (*failed, *figures.texts_under(results, "why_not")):
        print(text, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
