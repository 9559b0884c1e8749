"""Judge the GPUs and their driver. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gputui.profiles.doctor.gpu_probe import GpuReading
from gputui.profiles.gpu_checks import GpuSituation
from gputui.runs.checks import CheckResult

# From here on a GPU counts as busy, so its PCIe link has left the power-saving generation.
LOADED_PERCENT = 30.0


def judge_driver(reading: GpuReading, *, has_hardware: bool) -> CheckResult:
    """``has_hardware``: the machine has an NVIDIA GPU, even if the driver does not report it."""
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
    if reading.problem:
        return CheckResult(
            "driver", "fail", f"{detail}; {reading.problem}", "see dmesg | grep -i nvrm; reboot helps often"
        )
    return CheckResult("driver", "pass", detail)


def judge_gpus(reading: GpuReading, quarantined: Mapping[str, str]) -> CheckResult:
    """Check that all GPUs are recognised and healthy. ``quarantined``: UUID → reason."""
    if not reading.facts:
        return CheckResult("gpus", "skip", "no GPUs to look at")
    situation = GpuSituation(reading.facts, reading.samples, reading.slow, quarantined=quarantined)
    broken, warnings = [], []
    for gpu in reading.facts:
        unusable, warning = situation.unusable_reason(gpu, None), situation.warning(gpu)
        if gpu.mig_mode:
            warnings.append(f"GPU {gpu.index} {unusable}, no run gets it")
        elif unusable is not None:
            broken.append(f"GPU {gpu.index} {unusable}")
        elif warning is not None:
            warnings.append(f"GPU {gpu.index} {warning}")
    names = Counter(gpu.name for gpu in reading.facts)
    counted = ", ".join(f"{count} × {name}" for name, count in names.items())
    if broken:
        remedy = "reset (nvidia-smi -r) or power-cycle it; memory that cannot be remapped needs a replacement"
        return CheckResult("gpus", "fail", "; ".join([*broken, *warnings]), remedy)
    if warnings:
        remedy = "reset it with nvidia-smi -r when nothing runs on it; nvidia-smi -mig 0 ends MIG mode"
        return CheckResult("gpus", "warn", "; ".join(warnings), remedy)
    return CheckResult("gpus", "pass", f"{counted}, healthy")


def judge_persistence(reading: GpuReading) -> CheckResult:
    """Check persistence mode. Without it the driver unloads the state of an unused GPU, which slows down every start:
    https://docs.nvidia.com/deploy/driver-persistence/.
    """
    reported = [gpu for gpu in reading.facts if gpu.persistence_mode is not None]
    if not reported:
        return CheckResult("persistence mode", "skip", "the driver does not say" if reading.facts else "no GPUs")
    off = [str(gpu.index) for gpu in reported if not gpu.persistence_mode]
    if off:
        remedy = "sudo nvidia-smi -pm 1, or enable the nvidia-persistenced service"
        return CheckResult("persistence mode", "warn", f"off on GPU {', '.join(off)}", remedy)
    return CheckResult("persistence mode", "pass", "on")


def judge_pcie(reading: GpuReading) -> CheckResult:
    """Check that links have full width and generation. Idle GPUs lower their link to save power, so only busy ones are
    judged."""
    slower: list[str] = []
    idle: list[str] = []
    full = 0
    for gpu in reading.facts:
        slow, sample = reading.slow.get(gpu.uuid), reading.samples.get(gpu.uuid)
        current = None if slow is None else (slow.pcie_generation, slow.pcie_width)
        maximum = (gpu.pcie_generation_max, gpu.pcie_width_max)
        if current is None or None in current or None in maximum:
            continue
        if current == maximum:
            full += 1
            continue
        words = f"GPU {gpu.index} at generation {current[0]} ×{current[1]} of {maximum[0]} ×{maximum[1]}"
        busy = sample is not None and (sample.utilization_percent or 0.0) >= LOADED_PERCENT
        (slower if busy else idle).append(words)
    if slower:
        remedy = "reseat the card or its riser, and look for a shared or limited slot in the BIOS"
        return CheckResult("pcie", "warn", "; ".join(slower) + " under load", remedy)
    if idle:
        return CheckResult("pcie", "skip", "; ".join(idle) + ", but idle: ask again while a run works on it")
    if not full:
        return CheckResult("pcie", "skip", "the driver does not say" if reading.facts else "no GPUs")
    return CheckResult("pcie", "pass", f"all {full} at full width and generation" if full > 1 else "at full width")


def judge_topology(reading: GpuReading) -> CheckResult:
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
        named = ", ".join(f"{pair.first}-{pair.second}" + (f" over {pair.path}" if pair.path else "") for pair in apart)
        remedy = "training works through host memory, slower; IOMMU or ACS in the BIOS often forbids it"
        return CheckResult("topology", "warn", f"{detail}; no direct access between {named}", remedy)
    return CheckResult("topology", "pass", f"{detail}, all pairs reach each other directly")
