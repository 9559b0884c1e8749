"""The parts of the measurement, each in processes of its own and within the remaining time."""

from __future__ import annotations

import csv
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.trainer import window

ROOT = Path(__file__).parents[2]
_NOT_PASSED_ON = ("GPUTUI_", "TRAINER_", "TORCHELASTIC_")
_SHOWN_LINES = 6
NO_GPU = "no CUDA GPU is visible to torch"

# As nvidia-smi calls them, and the fields of our samples; how much one reading may differ from the other, which is
# taken up to a second later.
NVML_FIGURES: Mapping[str, tuple[str, float]] = {
    "utilization_percent": ("utilization.gpu", 15.0),
    "memory_used_mib": ("memory.used", 64.0),
    "memory_total_mib": ("memory.total", 1.0),
    "temperature_celsius": ("temperature.gpu", 3.0),
    "power_watts": ("power.draw", 60.0),
    "sm_clock_mhz": ("clocks.sm", 200.0),
}


class PartFailed(Exception):  # noqa: N818  (what is written down of it is why)
    """A part could not be measured; the message says why."""


@dataclass
class Machine:
    """The place and size of a measurement. `path` has the wheels' folders; `ends_at` is by the
    monotonic clock."""

    device: str
    quick: bool
    ends_at: float
    memory_bytes: int = 80 * 10**9
    peak_flops: float | None = None
    path: Sequence[Path] = field(default_factory=tuple)

    @property
    def left_seconds(self) -> float:
        return self.ends_at - time.monotonic()

    @property
    def context(self) -> int:
        return 16 if self.quick else 1024

    @property
    def gpt2_options(self) -> dict[str, int]:
        return {"layers": 1, "width": 32, "heads": 1} if self.quick else {}

    def batch(self, for_80_gb: int) -> int:
        """A micro batch for this GPU's memory, a multiple of 8 where that may be."""
        share = min(1.0, self.memory_bytes / 80e9)
        return 2 if self.quick else max(1, int(for_80_gb * share) // 8 * 8 or int(for_80_gb * share))

    def run(self, *command: str, limit_seconds: float, cwd: Path = ROOT) -> str:
        """Run a command of this Python and return its output. Raises PartFailed where it fails or
        takes too long."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_PASSED_ON)}
        before = [str(ROOT), *map(str, self.path), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(before)
        if self.device == "cpu":
            environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        # A try is made on any machine, however slow: only the end of all parts counts.
        limit = self.left_seconds if self.quick else min(limit_seconds, self.left_seconds)
        try:
            done = subprocess.run(
                [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=limit
            )
        except subprocess.TimeoutExpired:
            raise PartFailed(f"it took more than {limit:.0f} s") from None
        if done.returncode:
            said = " / ".join((done.stderr or done.stdout).strip().splitlines()[-_SHOWN_LINES:])
            raise PartFailed(f"exit status {done.returncode}: {said}")
        return done.stdout


# --- the bare loop, torch alone ---------------------------------------------------------------------------------------


def bare_gpt2(machine: Machine, *, compiled: bool) -> dict[str, Any]:
    trained = _bare(machine, "gpt2", machine.batch(32), machine.context, compiled, **machine.gpt2_options)
    return {**trained, "mfu": _mfu(machine, trained["per_second"])}


def _mfu(machine: Machine, tokens_per_s: float) -> float | None:
    """The share of the GPU's peak; None where that is unknown."""
    if machine.peak_flops is None:
        return None
    import torch

    from benchmarks.gpu import models

    with torch.device("meta"):
        network = models.gpt2(50257, machine.context, **machine.gpt2_options)
    return tokens_per_s * network.flops_per_token() / machine.peak_flops


def bare_resnet50(machine: Machine) -> dict[str, Any]:
    size = 32 if machine.quick else 224
    return _bare(machine, "resnet50", machine.batch(256), size, not machine.quick)


def _bare(machine: Machine, model: str, batch: int, size: int, compiled: bool, **options: int) -> dict[str, Any]:
    steps = {"warm_steps": 1, "steps": 2} if machine.quick else {"warm_steps": 15, "steps": 60}
    request = {"model": model, "device": machine.device, "batch": batch, "size": size, "compiled": compiled}
    printed = machine.run("-m", "benchmarks.gpu.bare", json.dumps({**request, **steps, **options}), limit_seconds=120)
    figures: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return figures


# --- the trainer ------------------------------------------------------------------------------------------------------

_STEPS_ALONE = ("--grad-accum", "1", "--deterministic", "false", "--precision", "bf16", "--validate-every", "0")


def trained_gpt2(machine: Machine, *, compiled: bool) -> dict[str, Any]:
    """GPT-2 by the trainer; eager, asynchronous checkpoints are saved in between, and `stall_seconds` is theirs."""
    options = ",".join(f"{name}={value}" for name, value in machine.gpt2_options.items())
    small = ["--model-options", options] if options else []
    settings = ["--task", "lm", "--model", "benchmarks.gpu.models:gpt2", *small, "--context", str(machine.context)]
    settings += ["--optimizer", "adamw", "--lr", "6e-4", "--weight-decay", "0.1"]
    trained = _trained(machine, settings, machine.batch(32), compiled=compiled, saving=not compiled)
    per_second = trained.pop("samples_per_s") * machine.context
    return {**trained, "per_second": per_second, "mfu": _mfu(machine, per_second)}


def trained_resnet50(machine: Machine) -> dict[str, Any]:
    workers = 0 if machine.quick else max(1, min(16, (os.cpu_count() or 2) - 2))
    settings = [
        *("--task", "classify", "--model", "benchmarks.gpu.models:resnet50", "--channels-last"),
        *("--image-size", str(32 if machine.quick else 224), "--num-workers", str(workers), "--prefetch", "4"),
    ]
    trained = _trained(machine, settings, machine.batch(256), compiled=not machine.quick, saving=False)
    return {**trained, "per_second": trained.pop("samples_per_s")}


def _trained(machine: Machine, settings: Sequence[str], batch: int, *, compiled: bool, saving: bool) -> dict[str, Any]:
    warm, steps, every = (1, 6, 2) if machine.quick else (25, 60, 20)
    with tempfile.TemporaryDirectory(prefix="gputui-gpu-") as folder:
        sizes = ["--batch-size", str(batch), "--steps", str(warm + steps), "--validate-samples", str(batch)]
        data = ["--data", "synthetic", "--synthetic-samples", str(20 * batch if machine.quick else 100_000)]
        saves = ["--checkpoint-every", str(every), "--async-checkpoints"] if saving else ["--checkpoint-every", "0"]
        compiling = ["--compile", "default" if compiled else "off"]
        where = ["--device", machine.device, "--output-dir", folder]
        machine.run(
            *("-m", "trainer", *_STEPS_ALONE, *settings, *sizes, *data, *saves, *compiling, *where), limit_seconds=180
        )
        lines = window.metrics(Path(folder))
    window_figures = window.of_trainer(lines, warm)
    usual = window_figures.median_seconds or window_figures.seconds_per_step
    # Steps that follow a checkpoint are reported as stalls; all others are the speed.
    seconds = usual if saving else window_figures.seconds_per_step
    figures: dict[str, Any] = {
        "batch_size": batch,
        "step_seconds": seconds,
        "samples_per_s": batch / seconds,
        "peak_bytes": window_figures.gpu_peak_bytes,
        "loss": window_figures.loss,
    }
    if saving:
        stalls = window.stalls(lines, usual)
        if not stalls:
            raise PartFailed("no checkpoint was written within the run")
        # The first one also asks for the memory of the copy.
        figures |= {
            "first_stall_seconds": stalls[0],
            "stall_seconds": sorted(stalls[1:] or stalls)[len(stalls[1:]) // 2],
        }
        figures["checkpoint_bytes"] = max(line.get("bytes", 0) for line in lines if line.get("event") == "checkpoint")
    return figures


# --- gputui -----------------------------------------------------------------------------------------------------------

_LOAD = (
    "import time, torch; x = torch.ones(8192, 8192, device='cuda', dtype=torch.bfloat16)\n"
    "print('busy', flush=True); ends = time.monotonic() + 20\n"
    "while time.monotonic() < ends:\n"
    "    for _ in range(50): x = x @ x * 1e-4\n"
    "    torch.cuda.synchronize()\n"
)
_READ = (
    "import json, time; from gputui.machine.nvml import NvmlSource\n"
    "source = NvmlSource(); facts = source.inventory(time.time())\n"
    "assert facts.problem is None, facts.problem\n"
    "source.fast(time.time()); time.sleep(1.0); tick = source.fast(time.time())\n"
    "print(json.dumps([{'uuid': one.uuid, 'utilization_percent': one.utilization_percent,"
    " 'memory_used_mib': (one.memory_used_bytes or 0) / 2**20,"
    " 'memory_total_mib': (one.memory_total_bytes or 0) / 2**20,"
    " 'temperature_celsius': one.temperature_celsius, 'power_watts': one.power_watts,"
    " 'sm_clock_mhz': one.sm_clock_mhz} for one in tick.gpus]))\n"
)


def nvml(machine: Machine) -> dict[str, Any]:
    """Our sampler's values of each GPU beside nvidia-smi's, while the first one is busy."""
    if machine.device == "cpu":
        return {"why_not": NO_GPU}
    busy = subprocess.Popen([sys.executable, "-c", _LOAD], stdout=subprocess.PIPE, text=True)
    try:
        assert busy.stdout is not None
        if busy.stdout.readline().strip() != "busy":
            raise PartFailed("the load on the GPU could not be started")
        time.sleep(2.0)
        ours = json.loads(machine.run("-c", _READ, limit_seconds=30))
        columns = ",".join(["uuid", *(name for name, _ in NVML_FIGURES.values())])
        printed = subprocess.run(
            ["nvidia-smi", f"--query-gpu={columns}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise PartFailed(f"nvidia-smi: {error}") from None
    finally:
        busy.kill()
        busy.wait()
    return {"gpus": compared(ours, printed)}


def compared(ours: Sequence[Mapping[str, Any]], printed: str) -> list[dict[str, Any]]:
    """Our figures of each GPU with nvidia-smi's, and whether each pair is within what a second may change."""
    theirs = {row[0]: row[1:] for row in csv.reader(printed.splitlines(), skipinitialspace=True) if row}
    rows = []
    for result in ours:
        if (values := theirs.get(result["uuid"])) is None:
            continue
        for (name, (_, apart)), text in zip(NVML_FIGURES.items(), values, strict=True):
            value = float(text) if text.replace(".", "", 1).isdigit() else None
            agree = None if None in (value, result[name]) else abs(value - result[name]) <= apart
            rows.append(
                {"uuid": result["uuid"], "figure": name, "gputui": result[name], "nvidia_smi": value, "agree": agree}
            )
    return rows


_PROFILE = """\
name: out-of-memory
launcher: python
module: benchmarks.gpu.hungry
python: {python}
workdir: {root}
gpus: {gpus}
params: {{batch_size: 16}}
args: --batch-size {{batch_size}} --full 16 --device {device} --out {{run_dir}}
env: {{PYTHONPATH: "{root}"}}
metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
checkpoints: {{dir: "{{run_dir}}/checkpoints", pattern: "step_*.pt", resume: "--resume {{checkpoint}}"}}
recovery: standard
"""


def out_of_memory(machine: Machine) -> dict[str, Any]:
    """A run that needs more than the GPU has, recovered by gputui: what it did, and how long no step was made."""
    with tempfile.TemporaryDirectory(prefix="gputui-gpu-", ignore_cleanup_errors=True) as folder:
        profile = Path(folder) / "out-of-memory.yaml"
        gpus = 0 if machine.device == "cpu" else 1
        profile.write_text(_PROFILE.format(python=sys.executable, root=ROOT, gpus=gpus, device=machine.device))
        gputui = ("-m", "gputui", "--home", str(Path(folder) / "home"))
        try:
            answer = machine.run(*gputui, "run", str(profile), "--wait", "--json", limit_seconds=120)
            run = json.loads(machine.run(*gputui, "show", json.loads(answer)["id"], "--json", limit_seconds=30))
            [metrics] = (Path(folder) / "home").rglob("metrics.jsonl")
            times = [json.loads(line)["time"] for line in metrics.read_text().splitlines()]
        finally:
            machine.run(*gputui, "agent", "stop", limit_seconds=30)
    kinds = [attempt["incident"]["kind"] for attempt in run["attempts"] if attempt["incident"]]
    return {
        "state": run["state"],
        "attempts": len(run["attempts"]),
        "incidents": kinds,
        "batch_sizes": [attempt["params"]["batch_size"] for attempt in run["attempts"]],
        "recovered": run["state"] == "succeeded" and set(kinds) == {"cuda_oom"},
        "without_steps_seconds": max(later - earlier for earlier, later in itertools.pairwise(times)),
    }


PARTS: Mapping[str, Callable[[Machine], dict[str, Any]]] = {
    "nvml": nvml,
    "bare-gpt2-eager": lambda machine: bare_gpt2(machine, compiled=False),
    "bare-gpt2-compiled": lambda machine: bare_gpt2(machine, compiled=True),
    "gpt2-compiled": lambda machine: trained_gpt2(machine, compiled=True),
    "gpt2-eager": lambda machine: trained_gpt2(machine, compiled=False),
    "oom": out_of_memory,
    "bare-resnet50": bare_resnet50,
    "resnet50": trained_resnet50,
}
"""In the order in which they are measured, for when time runs short."""

SHORTEST_SECONDS = 10.0


def measure(
    names: Sequence[str], machine: Machine, parts: Mapping[str, Callable[[Machine], dict[str, Any]]] = PARTS
) -> dict[str, Any]:
    """The named parts, or all. One that fails says why under ``failed``, and one without time under ``why_not``."""
    results: dict[str, Any] = {}
    for name in names or parts:
        if machine.left_seconds < SHORTEST_SECONDS:
            results[name] = {"why_not": "the time was over"}
            continue
        print(f"measuring {name} … ({machine.left_seconds:.0f} s left)", file=sys.stderr, flush=True)
        began = time.monotonic()
        try:
            results[name] = {**parts[name](machine), "took_seconds": time.monotonic() - began}
        except (PartFailed, OSError, ValueError, KeyError) as error:
            results[name] = {"failed": str(error) or type(error).__name__}
    for kind in ("eager", "compiled"):
        ours = results.get(f"gpt2-{kind}", {})
        bare = results.get(f"bare-gpt2-{kind}", {})
        if "per_second" in ours and "per_second" in bare:
            ours["ratio"] = ours["per_second"] / bare["per_second"]
    return results
