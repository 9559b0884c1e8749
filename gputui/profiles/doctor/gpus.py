"""Checks of the GPUs and their driver. They are read in a separate process, because the driver may hang.

    python -m gputui.profiles.doctor.gpus [SCENARIO]

prints a `GpuReading` as JSON. With a scenario the GPUs are simulated and have no topology.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from gputui.machine.child import ChildError, run_child
from gputui.machine.gpu_model import GpuFacts
from gputui.machine.topology import PATHS, GpuPair
from gputui.runs.checks import CheckResult, graded
from gputui.runs.gpu_conditions import EXCLUDED, GpuCondition
from gputui.store.series import GpuSample, GpuSlowSample

DEADLINE_SECONDS = 15.0  # a driver without persistence mode takes seconds per GPU
# From here on a GPU counts as busy, so its PCIe link has left the power-saving generation.
LOADED_PERCENT = 30.0
# From nvml.h. The binding defines READ as a tuple, which no call accepts.
_P2P_READ = 0
_P2P_NVLINK = 2
_NVLINKS_MAX = 36
_NVIDIA_VENDOR = "0x10de"
_DISPLAY_CLASS = "0x03"


class GpuReading(Struct, frozen=True):
    """The driver's answer.

    Attributes:
        source: ``nvml`` or ``simulated``.
        problem: One line: why there are no GPUs, or which one is missing.
        cuda: The newest CUDA version that the driver supports.
        samples: The newest fast sample of each GPU, by UUID.
        slow: The newest slow sample of each GPU, by UUID.
        nvlinks: Active links by GPU index, None without NVLink.
    """

    source: str
    problem: str | None = None
    driver_version: str | None = None
    cuda: tuple[int, int] | None = None
    facts: tuple[GpuFacts, ...] = ()
    samples: Mapping[str, GpuSample] = msgspec.field(default_factory=dict)
    slow: Mapping[str, GpuSlowSample] = msgspec.field(default_factory=dict)
    pairs: tuple[GpuPair, ...] = ()
    nvlinks: Mapping[int, int | None] = msgspec.field(default_factory=dict)


class NotedGpus(NamedTuple):
    """What a home has noted of its GPUs: the reason of each quarantine by UUID, the UUIDs that its
    runs lease, and those that ``gpus.yaml`` excludes."""

    quarantined: Mapping[str, str] = {}
    leased: Sequence[str] = ()
    excluded: Collection[str] = ()


# --- reading ----------------------------------------------------------------------------------------------------------


def read_gpus(scenario: Path | None, *, deadline_seconds: float = DEADLINE_SECONDS) -> GpuReading:
    """Ask the driver in a child process, at most until the deadline."""
    argv = [sys.executable, "-P", "-m", "gputui.profiles.doctor.gpus"]
    source = "nvml"
    if scenario is not None:
        argv.append(str(scenario))
        source = "simulated"
    try:
        answered = run_child(argv, deadline_seconds=deadline_seconds)
        return msgspec.json.decode(answered.output, type=GpuReading)
    except ChildError as error:
        return GpuReading(source, problem=f"the driver {error}; it may hang (dmesg says more)")
    except msgspec.DecodeError:
        return GpuReading(source, problem=f"the driver could not be asked: {answered.stderr_tail}")


def main(argv: list[str]) -> int:
    """Read the GPUs and print them."""
    at = time.time()
    source: Any
    if argv:
        from gputui.machine.simulated import SimulatedSource

        source = SimulatedSource(Path(argv[0]), gpu_count=None, epoch=at)
    else:
        from gputui.machine.nvml import NvmlSource

        source = NvmlSource()
    inventory = source.inventory(at)
    fast: Sequence[GpuSample] = ()
    slow: Sequence[GpuSlowSample] = ()
    topology: dict[str, Any] = {}
    if inventory.gpus:
        fast = source.fast(at).gpus
        for _ in inventory.gpus:
            source.link_step()  # each reads the PCIe link of another GPU
        slow = source.slow(at).gpus
        if not argv:
            topology = _topology(inventory.gpus)
    reading = GpuReading(
        source=inventory.source,
        problem=inventory.problem,
        driver_version=inventory.driver_version,
        facts=tuple(inventory.gpus),
        samples={gpu.uuid: gpu for gpu in fast},
        slow={gpu.uuid: gpu for gpu in slow},
        **topology,
    )
    sys.stdout.write(msgspec.json.encode(reading).decode() + "\n")
    return 0


def _topology(gpus: tuple[GpuFacts, ...]) -> dict[str, Any]:
    """The fields ``cuda``, ``pairs`` and ``nvlinks`` of a reading."""
    import pynvml as nvml

    cuda = None
    with contextlib.suppress(nvml.NVMLError):
        nvml.nvmlInit()
        version = nvml.nvmlSystemGetCudaDriverVersion_v2()
        cuda = (version // 1000, version % 1000 // 10)
    handles = {}
    for gpu in gpus:
        with contextlib.suppress(nvml.NVMLError):
            handles[gpu.index] = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
    pairs = (_pair(nvml, *first, *second) for first, second in combinations(handles.items(), 2))
    nvlinks = {index: _active_links(nvml, handle) for index, handle in handles.items()}
    return {"cuda": cuda, "pairs": tuple(pairs), "nvlinks": nvlinks}


def _active_links(driver: Any, handle: Any) -> int | None:
    """The number of active NVLinks; None if the GPU has none or the driver does not report them."""
    active = None
    for link in range(_NVLINKS_MAX):
        try:
            active = (active or 0) + int(driver.nvmlDeviceGetNvLinkState(handle, link) == 1)
        except driver.NVMLError:
            break
    return active


def _pair(driver: Any, first: int, first_handle: Any, second: int, second_handle: Any) -> GpuPair:
    """The connection of two GPUs with the indices ``first`` and ``second``."""
    levels = (
        driver.NVML_TOPOLOGY_INTERNAL,
        driver.NVML_TOPOLOGY_SINGLE,
        driver.NVML_TOPOLOGY_MULTIPLE,
        driver.NVML_TOPOLOGY_HOSTBRIDGE,
        driver.NVML_TOPOLOGY_NODE,
        driver.NVML_TOPOLOGY_SYSTEM,
    )
    path = None
    with contextlib.suppress(driver.NVMLError):
        level = driver.nvmlDeviceGetTopologyCommonAncestor(first_handle, second_handle)
        path = dict(zip(levels, PATHS[1:], strict=True)).get(level)
    p2p, nvlink = (_p2p_status(driver, first_handle, second_handle, kind) for kind in (_P2P_READ, _P2P_NVLINK))
    return GpuPair(first, second, p2p, nvlink, path)


def _p2p_status(driver: Any, first: Any, second: Any, kind: int) -> bool | None:
    """Return whether a kind of direct access works; None if the driver does not say."""
    try:
        return bool(driver.nvmlDeviceGetP2PStatus(first, second, kind) == driver.NVML_P2P_STATUS_OK)
    except driver.NVMLError:
        return None


def has_nvidia_hardware() -> bool:
    """Return whether the PCI bus has an NVIDIA GPU, or its kernel module is loaded."""
    if Path("/proc/driver/nvidia/version").exists():
        return True
    for vendor in Path("/sys/bus/pci/devices").glob("*/vendor"):
        with contextlib.suppress(OSError):
            kind = (vendor.parent / "class").read_text()
            if vendor.read_text().strip() == _NVIDIA_VENDOR and kind.startswith(_DISPLAY_CLASS):
                return True
    return False


# --- checks -----------------------------------------------------------------------------------------------------------


def check_gpus(reading: GpuReading, noted: NotedGpus, *, has_hardware: bool) -> list[CheckResult]:
    """All checks of the GPUs, in the order in which they are shown.

    Args:
        has_hardware: The machine has an NVIDIA GPU, even if the driver does not report it.
    """
    return [
        check_driver(reading, has_hardware=has_hardware),
        check_health(reading, noted),
        check_persistence(reading),
        check_pcie(reading),
        check_topology(reading),
    ]


def check_driver(reading: GpuReading, *, has_hardware: bool) -> CheckResult:
    """Check that the driver answers for all GPUs."""
    if reading.source == "simulated":
        return CheckResult("driver", "skip", "the GPUs of this home are simulated")
    if not reading.facts:
        problem = reading.problem or "the driver reports no GPU"
        if has_hardware:
            remedy = "install or reload the NVIDIA driver, reboot after an update of it, and see dmesg | grep -i nvrm"
            return CheckResult("driver", "fail", problem, remedy)
        return CheckResult("driver", "warn", f"no NVIDIA GPU here: {problem}", "runs with --gpus 0 work all the same")
    cuda = "" if reading.cuda is None else f", for CUDA up to {reading.cuda[0]}.{reading.cuda[1]}"
    detail = f"NVIDIA driver {reading.driver_version or 'of unknown version'}{cuda}"
    detail += f"; {reading.problem}" if reading.problem else ""
    return graded("driver", detail, "see dmesg | grep -i nvrm; reboot helps often", fails=bool(reading.problem))


def check_health(reading: GpuReading, noted: NotedGpus) -> CheckResult:
    """Check that all GPUs are recognised and healthy."""
    if not reading.facts:
        return CheckResult("gpus", "skip", "no GPUs to look at")
    broken = []
    warnings = []
    for gpu in reading.facts:
        condition = GpuCondition(
            gpu, reading.samples.get(gpu.uuid), reading.slow.get(gpu.uuid), quarantine=noted.quarantined.get(gpu.uuid)
        )
        unusable = condition.broken
        warning = condition.defect
        if gpu.mig_mode:
            warnings.append(f"GPU {gpu.index} {unusable}, no run gets it")
        elif unusable is not None:
            broken.append(f"GPU {gpu.index} {unusable}")
        elif warning is not None:
            warnings.append(f"GPU {gpu.index} {warning}")
    if broken:
        remedy = "reset (nvidia-smi -r) or power-cycle it; memory that cannot be remapped needs a replacement"
        return CheckResult("gpus", "fail", "; ".join([*broken, *warnings]), remedy)
    if warnings:
        remedy = "reset it with nvidia-smi -r when nothing runs on it; nvidia-smi -mig 0 ends MIG mode"
        return CheckResult("gpus", "warn", "; ".join(warnings), remedy)
    names = Counter(gpu.name for gpu in reading.facts)
    counted = ", ".join(f"{count} × {name}" for name, count in names.items())
    unused = [f"; GPU {gpu.index} {EXCLUDED}" for gpu in reading.facts if gpu.uuid in noted.excluded]
    return CheckResult("gpus", "pass", f"{counted}, healthy{''.join(unused)}")


def check_persistence(reading: GpuReading) -> CheckResult:
    """Check persistence mode. Without it the driver unloads the state of an unused GPU, which slows
    down every start: https://docs.nvidia.com/deploy/driver-persistence/.
    """
    reported = [gpu for gpu in reading.facts if gpu.persistence_mode is not None]
    if not reported:
        return _unknown("persistence mode", reading)
    off = [str(gpu.index) for gpu in reported if not gpu.persistence_mode]
    if not off:
        return CheckResult("persistence mode", "pass", "on")
    remedy = "sudo nvidia-smi -pm 1, or enable the nvidia-persistenced service"
    return CheckResult("persistence mode", "warn", f"off on GPU {', '.join(off)}", remedy)


def check_pcie(reading: GpuReading) -> CheckResult:
    """Check that links have full width and generation. Idle GPUs lower their link to save power, so
    only busy ones are judged."""
    slower: list[str] = []
    idle: list[str] = []
    full = 0
    for gpu in reading.facts:
        slow = reading.slow.get(gpu.uuid)
        sample = reading.samples.get(gpu.uuid)
        current = None if slow is None else (slow.pcie_generation, slow.pcie_width)
        maximum = (gpu.pcie_generation_max, gpu.pcie_width_max)
        if current is None or None in current or None in maximum:
            continue
        if current == maximum:
            full += 1
            continue
        generation, width = current
        most_generation, most_width = maximum
        link = f"GPU {gpu.index} at generation {generation} ×{width} of {most_generation} ×{most_width}"
        busy = sample is not None and (sample.utilization_percent or 0.0) >= LOADED_PERCENT
        if busy:
            slower.append(link)
        else:
            idle.append(link)
    if slower:
        remedy = "reseat the card or its riser, and look for a shared or limited slot in the BIOS"
        return CheckResult("pcie", "warn", "; ".join(slower) + " under load", remedy)
    if idle:
        return CheckResult("pcie", "skip", "; ".join(idle) + ", but idle: ask again while a run works on it")
    if not full:
        return _unknown("pcie", reading)
    if full == 1:
        return CheckResult("pcie", "pass", "at full width")
    return CheckResult("pcie", "pass", f"all {full} at full width and generation")


def _unknown(name: str, reading: GpuReading) -> CheckResult:
    """The result of a check for which no GPU said what it needs."""
    if reading.facts:
        return CheckResult(name, "skip", "the driver does not say")
    return CheckResult(name, "skip", "no GPUs")


def check_topology(reading: GpuReading) -> CheckResult:
    """Check that the GPUs can access each other directly."""
    if len(reading.facts) < 2:
        return CheckResult("topology", "skip", "fewer than two GPUs")
    reported = [pair for pair in reading.pairs if pair.p2p is not None or pair.nvlink is not None]
    if not reported:
        return CheckResult("topology", "skip", "the driver does not say how the GPUs are connected")
    apart = [pair for pair in reported if not pair.p2p and not pair.nvlink]
    linked = sum(1 for pair in reported if pair.nvlink)
    links = {count for count in reading.nvlinks.values() if count is not None}
    active = f" ({min(links)} links active on each)" if len(links) == 1 and linked else ""
    detail = f"{linked} of {len(reported)} pairs by NVLink{active}" if linked else "no NVLink"
    if len(links) > 1:
        uneven = ", ".join(f"GPU {index}: {count}" for index, count in reading.nvlinks.items())
        return CheckResult("topology", "warn", f"{detail}; active links differ ({uneven})", "see nvidia-smi nvlink -s")
    if apart:
        pairs = []
        for pair in apart:
            path = f" over {pair.path}" if pair.path else ""
            pairs.append(f"{pair.first}-{pair.second}{path}")
        remedy = "training works through host memory, slower; IOMMU or ACS in the BIOS often forbids it"
        return CheckResult("topology", "warn", f"{detail}; no direct access between {', '.join(pairs)}", remedy)
    return CheckResult("topology", "pass", f"{detail}, all pairs reach each other directly")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
