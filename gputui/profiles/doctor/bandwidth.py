"""The bandwidth between host and GPUs and among GPUs.

It is measured by the training environment's torch under its torchrun, in processes that end at a deadline.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from gputui.machine.child import ChildError, run_child
from gputui.profiles.doctor.gpus import GpuReading
from gputui.runs.agent_process import RANK_MARKS
from gputui.runs.checks import CheckResult
from gputui.store.series import GpuSample

TORCHRUN_MODULE = "torch.distributed.run"
DEADLINE_SECONDS = 120.0  # importing torch from a cold network disk takes up to a minute
# By generation, of one lane in one direction, encoding deducted (PCI-SIG).
PCIE_LANE_BYTES_PER_SECOND = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
# Pinned copies reach 80 to 90 % of the link. Less than half of it is a fault.
SLOW_COPY_FRACTION = 0.5
FREE_MEMORY_BYTES = 2**30  # the buffers, and what CUDA itself takes
FREE_PERCENT = 5.0  # a busier GPU would measure the other process
CPU_PROCESSES = 2  # the fewest that communicate

_MARK = "gputui-bandwidth:"
_MAX_CAUSE = 160  # two lines of a terminal

# Runs under another environment's torchrun, which starts ranks in new sessions. So each rank asks
# the kernel to end it with its parent and at the deadline, which works inside a call that hangs.
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


class Bandwidth(Struct, frozen=True):
    """Measured values. ``copies``: per GPU (to it, from it) in bytes per second.
    ``bus_bytes_per_second`` is the bus bandwidth of the all-reduce as nccl-tests define it
    (PERFORMANCE.md), ``latency_seconds`` the median of all-reduces of one number; both are None
    with a single process."""

    backend: str
    world: int
    copies: tuple[tuple[float, float], ...] = ()
    bus_bytes_per_second: float | None = None
    latency_seconds: float | None = None


def free_gpus(reading: GpuReading, leased: Sequence[str]) -> tuple[int, ...] | None:
    """The idle GPUs, as indices of ``reading.facts``; None on a machine without GPUs.

    Args:
        leased: The UUIDs of those that runs of any home or user have.
    """
    if reading.source != "nvml" or not reading.facts:
        return None
    free = []
    for number, gpu in enumerate(reading.facts):
        sample = reading.samples.get(gpu.uuid)
        if gpu.mig_mode or gpu.uuid in leased or sample is None:
            continue
        if sample.state == "ok" and _is_idle(sample):
            free.append(number)
    return tuple(free)


def _is_idle(sample: GpuSample) -> bool:
    """Return whether nothing else uses a GPU, as far as it tells."""
    used = sample.memory_used_bytes
    busy = sample.utilization_percent
    has_room = used is not None and used < FREE_MEMORY_BYTES
    return has_room and (busy is None or busy < FREE_PERCENT)


def measure(
    python: str, environ: Mapping[str, str], uuids: Sequence[str] | None, *, deadline_seconds: float = DEADLINE_SECONDS
) -> Bandwidth | str:
    """Measure on these GPUs, or between CPU processes for None. A failure ends a sentence."""
    if uuids is None:
        backend = "gloo"
        count = CPU_PROCESSES
    else:
        backend = "nccl"
        count = len(uuids)
    environment = {**_without_rank(environ), "CUDA_VISIBLE_DEVICES": ",".join(uuids or ()), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="gputui-bandwidth-") as folder:
        script = Path(folder) / "measure.py"
        script.write_text(_SCRIPT)
        argv = [python, "-m", TORCHRUN_MODULE, "--standalone", f"--nproc-per-node={count}", str(script)]
        argv += [str(max(1, int(deadline_seconds))), backend, _MARK]
        try:
            answered = run_child(argv, deadline_seconds=deadline_seconds, environ=environment, workdir=folder)
        except ChildError as error:
            return str(error)
    for line in answered.output.splitlines():
        if line.startswith(_MARK):
            return decode(json.loads(line.removeprefix(_MARK)))
    errors = (line.strip() for line in answered.errors.splitlines() if "Error" in line)
    cause = next(errors, answered.stderr_tail)
    return f"ended without figures: {cause[:_MAX_CAUSE]}"


def _without_rank(environ: Mapping[str, str]) -> Mapping[str, str]:
    """An environment without what tells a process that it is a rank of another program."""
    return {
        name: value
        for name, value in environ.items()
        if name not in RANK_MARKS and not name.startswith("TORCHELASTIC_")
    }


def decode(data: Mapping[str, Any]) -> Bandwidth:
    """Parse the output of the script."""
    copies = ((copy["to_gpu_bytes_per_second"], copy["from_gpu_bytes_per_second"]) for copy in data["copies"])
    return Bandwidth(
        data["backend"], data["world"], tuple(copies), data["bus_bytes_per_second"], data["latency_seconds"]
    )


def check_bandwidth(measured: Bandwidth | str, reading: GpuReading, gpus: Sequence[int] | None) -> list[CheckResult]:
    """Check a measurement. Pure. ``gpus`` is the result of `free_gpus`."""
    if isinstance(measured, str):
        remedy = "try it by hand with NCCL_DEBUG=INFO, or see whether the interpreter's torch works at all"
        return [CheckResult("bandwidth", "fail", f"the measurement {measured}", remedy)]
    return [_copies(measured, reading, gpus), _all_reduce(measured, reading, gpus)]


def _copies(measured: Bandwidth, reading: GpuReading, gpus: Sequence[int] | None) -> CheckResult:
    if not measured.copies or gpus is None:
        return CheckResult("copy bandwidth", "skip", "no GPU to copy to")
    rates = []
    slow = []
    for number, (to_gpu, from_gpu) in zip(gpus, measured.copies, strict=True):
        gpu = reading.facts[number]
        rates.append(f"GPU {gpu.index} {to_gpu / 1e9:.1f} GB/s to it, {from_gpu / 1e9:.1f} from it")
        link = pcie_bytes_per_second(gpu.pcie_generation_max, gpu.pcie_width_max)
        if link is not None and min(to_gpu, from_gpu) < link * SLOW_COPY_FRACTION:
            slow.append(f"GPU {gpu.index} of {link / 1e9:.0f} GB/s")
    detail = "; ".join(rates)
    if slow:
        remedy = "see the pcie check while a run works, and numactl --hardware: the far socket's memory is slower"
        return CheckResult("copy bandwidth", "warn", f"{detail}; less than half of the link: {', '.join(slow)}", remedy)
    return CheckResult("copy bandwidth", "pass", detail)


def _all_reduce(measured: Bandwidth, reading: GpuReading, gpus: Sequence[int] | None) -> CheckResult:
    bus = measured.bus_bytes_per_second
    latency = measured.latency_seconds
    if bus is None or latency is None:
        return CheckResult("all-reduce", "skip", "needs two free GPUs")
    ranks = "processes on the CPU" if gpus is None else "GPUs"
    where = f"{measured.world} {ranks} by {measured.backend}"
    detail = f"{bus / 1e9:.1f} GB/s bus bandwidth, {latency * 1e6:.0f} µs latency; {where}"
    if gpus is not None and _have_nvlink(reading, gpus) and bus < _slowest_link(reading, gpus):
        remedy = "NVLink seems unused: look for NCCL_P2P_DISABLE, and at NCCL_DEBUG=INFO for the path it took"
        return CheckResult("all-reduce", "warn", f"{detail}; slower than PCIe", remedy)
    return CheckResult("all-reduce", "pass", detail)


def _have_nvlink(reading: GpuReading, gpus: Sequence[int]) -> bool:
    """Return whether NVLink joins each pair of some GPUs."""
    indices = {reading.facts[number].index for number in gpus}
    pairs = [pair for pair in reading.pairs if {pair.first, pair.second} <= indices]
    return bool(pairs) and all(pair.nvlink for pair in pairs)


def _slowest_link(reading: GpuReading, gpus: Sequence[int]) -> float:
    """The throughput of the slowest PCIe link of some GPUs, in bytes per second; 0.0 if none is known."""
    facts = [reading.facts[number] for number in gpus]
    links = [pcie_bytes_per_second(gpu.pcie_generation_max, gpu.pcie_width_max) for gpu in facts]
    return min((link for link in links if link is not None), default=0.0)


def pcie_bytes_per_second(generation: int | None, width: int | None) -> float | None:
    """The throughput of a link in one direction; None if unknown."""
    lane = PCIE_LANE_BYTES_PER_SECOND.get(generation or 0)
    if lane is None or width is None:
        return None
    return lane * width
