"""How fast host and GPUs, and the GPUs among themselves, really are: measured by the training environment's own torch,
under its own torchrun, in processes that end at a deadline in any case."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputui.doctor.gpu_probe import GpuReading
from gputui.host.child import ChildError, run_child
from gputui.runs.agent_process import RANK_MARKS
from gputui.runs.checks import CheckResult

TORCHRUN_MODULE = "torch.distributed.run"
DEADLINE_SECONDS = 120.0
# Per direction and lane, encoding deducted (PCI-SIG): generation → GB/s.
PCIE_LANE_BYTES_PER_SECOND = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
# Pinned copies reach 80 to 90 % of the link; half of it means that something is wrong.
SLOW_COPY_FRACTION = 0.5
FREE_MEMORY_BYTES = 2**30
FREE_PERCENT = 5.0
CPU_PROCESSES = 2

_MARK = "gputui-bandwidth:"

# Runs under a foreign torchrun. Its ranks are sessions of their own, so each ends itself: with its parent, or at the
# deadline, both by the kernel and also inside of a call that hangs.
_SCRIPT = r"""
import ctypes, json, os, signal, sys, time
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
signal.alarm(int(sys.argv[1]))
import torch
import torch.distributed as dist

on_gpus = sys.argv[2] == "nccl"
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", rank) if on_gpus else torch.device("cpu")
if on_gpus:
    torch.cuda.set_device(device)
dist.init_process_group(sys.argv[2])

def settle():
    if on_gpus:
        torch.cuda.synchronize()

def seconds_of(action, times):
    for _ in range(3):
        action()
    settle()
    took = []
    for _ in range(times):
        began = time.perf_counter()
        action()
        settle()
        took.append(time.perf_counter() - began)
    return sorted(took)[len(took) // 2]

copies = None
if on_gpus:
    size = 256 * 2**20
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(size, dtype=torch.uint8, device=device)
    for turn in range(world):
        if turn == rank:
            copies = {
                "to_gpu_bytes_per_second": size / seconds_of(lambda: there.copy_(host, non_blocking=True), 9),
                "from_gpu_bytes_per_second": size / seconds_of(lambda: host.copy_(there, non_blocking=True), 9),
            }
        dist.barrier()
    del host, there
gathered = [None] * world
dist.all_gather_object(gathered, copies)
bus = latency = None
if world > 1:
    large = torch.zeros((256 if on_gpus else 16) * 2**20 // 4, device=device)
    small = torch.zeros(1, device=device)
    algorithm = large.numel() * 4 / seconds_of(lambda: dist.all_reduce(large), 9)
    bus = algorithm * 2 * (world - 1) / world
    latency = seconds_of(lambda: dist.all_reduce(small), 101)
if rank == 0:
    found = {"backend": sys.argv[2], "world": world, "copies": [each for each in gathered if each]}
    found.update({"bus_bytes_per_second": bus, "latency_seconds": latency})
    sys.stdout.write("\n" + sys.argv[3] + json.dumps(found) + "\n")
    sys.stdout.flush()
dist.destroy_process_group()
"""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """What was measured. ``copies``: per GPU of the test (to it, from it) in bytes per second. ``bus_bytes_per_second``
    is the all-reduce's bus bandwidth as nccl-tests define it (its PERFORMANCE.md), ``latency_seconds`` the median of
    all-reduces of one number; both None with a single process."""

    backend: str
    world: int
    copies: tuple[tuple[float, float], ...] = ()
    bus_bytes_per_second: float | None = None
    latency_seconds: float | None = None


def free_gpus(reading: GpuReading, leased: Sequence[str]) -> tuple[int, ...] | None:
    """The GPUs (as places in ``reading.facts``) on which a test disturbs no one; None if there are none at all, and
    processes on the CPU are to be measured instead."""
    if reading.source != "nvml" or not reading.facts:
        return None
    found = []
    for place, gpu in enumerate(reading.facts):
        sample = reading.samples.get(gpu.uuid)
        if gpu.mig_mode or gpu.uuid in leased or sample is None or sample.state != "ok":
            continue
        used, busy = sample.memory_used_bytes, sample.utilization_percent
        if used is not None and used < FREE_MEMORY_BYTES and (busy is None or busy < FREE_PERCENT):
            found.append(place)
    return tuple(found)


def measure(
    python: str,
    environ: Mapping[str, str],
    uuids: Sequence[str] | None,
    *,
    deadline_seconds: float = DEADLINE_SECONDS,
) -> Bandwidth | str:
    """Measure on these GPUs, or with None between processes on the CPU (gloo). Or why that failed, as the end of a
    sentence."""
    clean = {
        name: value
        for name, value in environ.items()
        if name not in RANK_MARKS and not name.startswith("TORCHELASTIC_")
    }
    clean |= {"CUDA_VISIBLE_DEVICES": ",".join(uuids or ()), "OMP_NUM_THREADS": "1"}
    backend, count = ("gloo", CPU_PROCESSES) if uuids is None else ("nccl", len(uuids))
    with tempfile.TemporaryDirectory(prefix="gputui-bandwidth-") as folder:
        script = Path(folder) / "measure.py"
        script.write_text(_SCRIPT)
        argv = [python, "-m", TORCHRUN_MODULE, "--standalone", f"--nproc-per-node={count}", str(script)]
        argv += [str(max(1, int(deadline_seconds))), backend, _MARK]
        try:
            answered = run_child(argv, deadline_seconds=deadline_seconds, environ=clean, workdir=folder)
        except ChildError as error:
            return str(error)
    for line in answered.output.splitlines():
        if line.startswith(_MARK):
            return decode(json.loads(line.removeprefix(_MARK)))
    errors = [line.strip() for line in answered.complaint.splitlines() if "Error" in line]
    return f"ended without figures: {(errors[0] if errors else answered.last_words)[:160]}"


def decode(found: Mapping[str, Any]) -> Bandwidth:
    """What the script printed."""
    copies = ((each["to_gpu_bytes_per_second"], each["from_gpu_bytes_per_second"]) for each in found["copies"])
    return Bandwidth(
        found["backend"], found["world"], tuple(copies), found["bus_bytes_per_second"], found["latency_seconds"]
    )


def judge_bandwidth(measured: Bandwidth | str, reading: GpuReading, places: Sequence[int] | None) -> list[CheckResult]:
    """Pure. ``places`` as `free_gpus` gave them."""
    if isinstance(measured, str):
        remedy = "try it by hand with NCCL_DEBUG=INFO, or see whether the interpreter's torch works at all"
        return [CheckResult("bandwidth", "fail", f"the measurement {measured}", remedy)]
    return [_copies(measured, reading, places), _all_reduce(measured, reading, places)]


def _copies(measured: Bandwidth, reading: GpuReading, places: Sequence[int] | None) -> CheckResult:
    if not measured.copies or places is None:
        return CheckResult("copy bandwidth", "skip", "no GPU to copy to")
    words, slow = [], []
    for place, (to_gpu, from_gpu) in zip(places, measured.copies, strict=True):
        gpu = reading.facts[place]
        words.append(f"GPU {gpu.index} {to_gpu / 1e9:.1f} GB/s to it, {from_gpu / 1e9:.1f} from it")
        link = pcie_bytes_per_second(gpu.pcie_generation_max, gpu.pcie_width_max)
        if link is not None and min(to_gpu, from_gpu) < link * SLOW_COPY_FRACTION:
            slow.append(f"GPU {gpu.index} of {link / 1e9:.0f} GB/s")
    detail = "; ".join(words)
    if slow:
        remedy = "see the pcie check while a run works, and numactl --hardware: the far socket's memory is slower"
        return CheckResult("copy bandwidth", "warn", f"{detail}; less than half of the link: {', '.join(slow)}", remedy)
    return CheckResult("copy bandwidth", "pass", detail)


def _all_reduce(measured: Bandwidth, reading: GpuReading, places: Sequence[int] | None) -> CheckResult:
    bus, latency = measured.bus_bytes_per_second, measured.latency_seconds
    if bus is None or latency is None:
        return CheckResult("all-reduce", "skip", "needs two free GPUs")
    where = f"{measured.world} {'GPUs' if places is not None else 'processes on the CPU'} by {measured.backend}"
    detail = f"{bus / 1e9:.1f} GB/s bus bandwidth, {latency * 1e6:.0f} µs latency; {where}"
    if places is not None:
        indices = {reading.facts[place].index for place in places}
        pairs = [pair for pair in reading.pairs if {pair.first, pair.second} <= indices]
        links = [
            pcie_bytes_per_second(reading.facts[p].pcie_generation_max, reading.facts[p].pcie_width_max) for p in places
        ]
        known = [link for link in links if link is not None]
        if pairs and all(pair.nvlink for pair in pairs) and known and bus < min(known):
            remedy = "NVLink seems unused: look for NCCL_P2P_DISABLE, and at NCCL_DEBUG=INFO for the path it took"
            return CheckResult("all-reduce", "warn", f"{detail}; slower than PCIe", remedy)
    return CheckResult("all-reduce", "pass", detail)


def pcie_bytes_per_second(generation: int | None, width: int | None) -> float | None:
    """What a link carries in one direction; None if it is not known."""
    lane = PCIE_LANE_BYTES_PER_SECOND.get(generation) if generation is not None else None
    return None if lane is None or width is None else lane * width
