"""``python -m benchmarks.gpu``: everything that only a GPU can tell, in nine minutes, as one JSON and one table.

    python -m benchmarks.gpu --pack wheels          # where there is a network: what the other machine lacks
    python -m benchmarks.gpu --wheels wheels        # on the machine with the GPU: torch >= 2.11, and nothing else

Exit status: 0 all was measured, 1 a part could not be, 2 usage, 3 there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import figures
from benchmarks.figures import Figure, Unit
from benchmarks.gpu import wheels
from benchmarks.gpu.parts import NO_GPU, PARTS, Machine, measure

NAME = "gpu"
UNMEASURED = "not measured on a GPU"


def _row(text: str, unit: Unit, part: str, key: str, aim: float | None = None, **more: Any) -> Figure:
    return Figure(NAME, text, unit, (part, key), aim=aim, **{"aim_is": "at least", **more})


FIGURES: tuple[Figure, ...] = (
    _row("GPT-2 124M, bare loop, eager: tokens a second", "/s", "bare-gpt2-eager", "per_second"),
    _row("GPT-2 124M, bare loop, eager: used of the GPU", "% of peak", "bare-gpt2-eager", "mfu"),
    _row("GPT-2 124M, bare loop, compiled: tokens a second", "/s", "bare-gpt2-compiled", "per_second"),
    _row("GPT-2 124M, bare loop, compiled: used of the GPU", "% of peak", "bare-gpt2-compiled", "mfu"),
    _row("GPT-2 124M, trainer, eager: tokens a second", "/s", "gpt2-eager", "per_second"),
    _row("GPT-2 124M, trainer, eager: used of the GPU", "% of peak", "gpt2-eager", "mfu"),
    _row("GPT-2 124M, trainer, eager: speed over the bare loop's", "×", "gpt2-eager", "ratio", 0.99),
    _row("GPT-2 124M, trainer, eager: peak memory", "MB", "gpt2-eager", "peak_bytes"),
    _row("GPT-2 124M, trainer, compiled: tokens a second", "/s", "gpt2-compiled", "per_second"),
    _row("GPT-2 124M, trainer, compiled: used of the GPU", "% of peak", "gpt2-compiled", "mfu", 0.4),
    _row("GPT-2 124M, trainer, compiled: speed over the bare loop's", "×", "gpt2-compiled", "ratio", 0.99),
    _row("GPT-2 124M, trainer, compiled: peak memory", "MB", "gpt2-compiled", "peak_bytes"),
    _row("GPT-2 124M, bare loop, compiled: peak memory", "MB", "bare-gpt2-compiled", "peak_bytes"),
    _row(
        "checkpoint saved asynchronously: a step takes longer", "ms", "gpt2-eager", "stall_seconds", 0.1, aim_is="below"
    ),
    _row("checkpoint saved asynchronously, the first time", "ms", "gpt2-eager", "first_stall_seconds"),
    _row("ResNet-50, bare loop: images a second", "/s", "bare-resnet50", "per_second"),
    _row("ResNet-50, trainer: images a second", "/s", "resnet50", "per_second", 3500.0),
    _row("ResNet-50, trainer: peak memory", "MB", "resnet50", "peak_bytes"),
    _row("CUDA out of memory: from the last step to the next", "s", "oom", "without_steps_seconds"),
)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description="Measures what only a GPU can tell, in nine minutes."
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"which: {', '.join(PARTS)}; else all")
    parser.add_argument("--pack", type=Path, metavar="DIR", help="only download the wheels that --wheels takes")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="take what is not installed from these wheels")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try it out, with --quick")
    parser.add_argument("--quick", action="store_true", help="tiny models and few steps: nothing of it is a figure")
    parser.add_argument("--minutes", type=float, default=9.0, help="what is not measured by then is left out (9)")
    parser.add_argument("--json", type=Path, default=Path("gpu.json"), help="everything measured (gpu.json)")
    parser.add_argument("--markdown", type=Path, default=Path("gpu.md"), help="the table (gpu.md)")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.parts if name not in PARTS]:
        parser.error(f"there is no part named {unknown[0]}; there are {', '.join(PARTS)}")
    if args.device == "cpu" and not args.quick:
        parser.error("--device cpu is there to try the parts out: it needs --quick")
    if args.pack is not None:
        return _pack(args.pack)
    ends_at = time.monotonic() + 60 * args.minutes
    if find_spec("torch") is None:
        print("benchmarks.gpu: torch is not installed; it needs torch >= 2.11", file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory(prefix="gputui-wheels-") as folder:
        machine = Machine(args.device, args.quick, ends_at)
        try:
            machine.path = wheels.unpack(args.wheels, Path(folder)) if args.wheels else ()
        except (OSError, ValueError) as error:
            parser.error(str(error))
        described = _describe(machine)
        if described is None:
            print(f"benchmarks.gpu: {NO_GPU}; --device cpu --quick tries the parts out", file=sys.stderr)
            return 3
        results = {NAME: measure(args.parts, machine)}
    args.json.write_text(json.dumps({"machine": described, **results}, indent=2) + "\n", encoding="utf-8")
    table = markdown(results, described)
    args.markdown.write_text(table, encoding="utf-8")
    print(table)
    failed = figures.texts_under(results, "failed")
    for text in (*(f"could not be measured: {text}" for text in failed), *figures.texts_under(results, "why_not")):
        print(text, file=sys.stderr)
    return 1 if failed else 0


def _pack(folder: Path) -> int:
    try:
        names = wheels.pack(folder)
    except subprocess.CalledProcessError as error:
        print(f"benchmarks.gpu: pip ended with {error.returncode}; packing needs a network", file=sys.stderr)
        return 1
    print(f"{len(names)} wheels in {folder}; take it and the checkout to the machine with the GPU")
    return 0


def _describe(machine: Machine) -> dict[str, Any] | None:
    """The device, and torch; None without a GPU. It also sets what `machine` has to know of it."""
    import torch

    software = {"torch": torch.__version__, "python": platform.python_version()}
    if machine.device == "cpu":
        return {"device": "cpu", "measured_on_gpu": False, **software}
    if not torch.cuda.is_available():
        return None
    from trainer.telemetry.speed import peak_flops

    first = torch.cuda.get_device_properties(0)
    machine.memory_bytes = first.total_memory
    machine.peak_flops = peak_flops(first.name, "half")
    return {
        "device": first.name,
        "measured_on_gpu": not machine.quick,
        "gpus": torch.cuda.device_count(),
        "memory_bytes": first.total_memory,
        "cuda": torch.version.cuda,
        **software,
    }


def markdown(results: figures.Results, machine: dict[str, Any]) -> str:
    """One table of all figures; what was not measured says so."""
    on_gpu = machine["measured_on_gpu"]
    heading = f"{machine['device']}, torch {machine['torch']}, Python {machine['python']}"
    rows = [
        f"{heading}{'' if on_gpu else f': {UNMEASURED}'}",
        "",
        "| | measured | aim | reached |",
        "|---|---:|---:|---|",
    ]
    for figure in FIGURES:
        text, reached_text, aim, reached = figures.row(figure, results)
        if figure.value(results) is None:
            reached_text = "not measured"
            reached = ""
        elif not on_gpu:
            reached_text = f"{reached_text} ({UNMEASURED})"
            reached = ""
        rows.append(f"| {text} | {reached_text} | {aim} | {reached} |")
    measured = results[NAME] or {}
    said = {True: "yes", False: "NO", None: ""}
    if "recovered" in (oom := measured.get("oom", {})):
        batches = ", ".join(map(str, oom["batch_sizes"]))
        label = "" if on_gpu else f" ({UNMEASURED})"
        what = f"out of memory, recovered by gputui; micro batches {batches}"
        rows.append(f"| {what} | {oom['state']}{label} | | {said[oom['recovered']]} |")
    for gpu in measured.get("nvml", {}).get("gpus", ()):
        what = f"{gpu['figure']} of {gpu['uuid'][:12]}: gputui; nvidia-smi"
        rows.append(f"| {what} | {gpu['gputui']}; {gpu['nvidia_smi']} | | {said[gpu['agree']]} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.exit(main())
