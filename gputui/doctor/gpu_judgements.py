"""Whether the GPUs and their driver are fit; pure."""

from __future__ import annotations

from collections.abc import Mapping

from gputui.doctor.gpu_probe import GpuReading
from gputui.profiles.gpu_checks import GpuSituation
from gputui.runs.checks import CheckResult

# From here on a GPU counts as at work: its PCIe link has then left the power-saving generation.
LOADED_PERCENT = 30.0


def judge_driver(reading: GpuReading, *, has_hardware: bool) -> CheckResult:
    """``has_hardware``: an NVIDIA GPU is plugged in, even if the driver disagrees."""
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
    """All recognised and healthy? ``quarantined``: UUID → why no run gets it."""
    if not reading.facts:
        return CheckResult("gpus", "skip", "no GPUs to look at")
    situation = GpuSituation(reading.facts, reading.samples, reading.slow, quarantined=quarantined)
    broken, worries = [], []
    for gpu in reading.facts:
        obstacle, worry = situation.obstacle(gpu, None), situation.worry(gpu)
        if gpu.mig_mode:
            worries.append(f"GPU {gpu.index} {obstacle}, no run gets it")
        elif obstacle is not None:
            broken.append(f"GPU {gpu.index} {obstacle}")
        elif worry is not None:
            worries.append(f"GPU {gpu.index} {worry}")
    names: dict[str, int] = {}
    for gpu in reading.facts:
        names[gpu.name] = names.get(gpu.name, 0) + 1
    counted = ", ".join(f"{count} × {name}" for name, count in names.items())
    if broken:
        remedy = "reset (nvidia-smi -r) or power-cycle it; memory that cannot be remapped needs a replacement"
        return CheckResult("gpus", "fail", "; ".join([*broken, *worries]), remedy)
    if worries:
        remedy = "reset it with nvidia-smi -r when nothing runs on it; nvidia-smi -mig 0 ends MIG mode"
        return CheckResult("gpus", "warn", "; ".join(worries), remedy)
    return CheckResult("gpus", "pass", f"{counted}, healthy")


def judge_persistence(reading: GpuReading) -> CheckResult:
    """Without persistence mode the driver unloads a GPU's state when it is unused, and every start pays for that:
    https://docs.nvidia.com/deploy/driver-persistence/."""
    known = [gpu for gpu in reading.facts if gpu.persistence_mode is not None]
    if not known:
        return CheckResult("persistence mode", "skip", "the driver does not say" if reading.facts else "no GPUs")
    off = [str(gpu.index) for gpu in known if not gpu.persistence_mode]
    if off:
        remedy = "sudo nvidia-smi -pm 1, or enable the nvidia-persistenced service"
        return CheckResult("persistence mode", "warn", f"off on GPU {', '.join(off)}", remedy)
    return CheckResult("persistence mode", "pass", "on")


def judge_pcie(reading: GpuReading) -> CheckResult:
    """Full width and generation? Idle GPUs lower their link to save power, so only those at work are judged."""
    slower: list[str] = []
    idle: list[str] = []
    full = 0
    for gpu in reading.facts:
        slow, sample = reading.slow.get(gpu.uuid), reading.samples.get(gpu.uuid)
        now = None if slow is None else (slow.pcie_generation, slow.pcie_width)
        most = (gpu.pcie_generation_max, gpu.pcie_width_max)
        if now is None or None in now or None in most:
            continue
        if now == most:
            full += 1
            continue
        words = f"GPU {gpu.index} at generation {now[0]} ×{now[1]} of {most[0]} ×{most[1]}"
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
    """Do the GPUs reach each other directly?"""
    if len(reading.facts) < 2:
        return CheckResult("topology", "skip", "fewer than two GPUs")
    known = [pair for pair in reading.pairs if pair.p2p is not None or pair.nvlink is not None]
    if not known:
        return CheckResult("topology", "skip", "the driver does not say how the GPUs are connected")
    apart = [pair for pair in known if not pair.p2p and not pair.nvlink]
    linked = sum(1 for pair in known if pair.nvlink)
    links = {count for count in reading.nvlinks.values() if count is not None}
    active = f" ({min(links)} links active on each)" if len(links) == 1 and linked else ""
    detail = f"{linked} of {len(known)} pairs by NVLink{active}" if linked else "no NVLink"
    if len(links) > 1:
        uneven = ", ".join(f"GPU {index}: {count}" for index, count in reading.nvlinks.items())
        return CheckResult("topology", "warn", f"{detail}; active links differ ({uneven})", "see nvidia-smi nvlink -s")
    if apart:
        named = ", ".join(f"{pair.first}-{pair.second}" + (f" over {pair.path}" if pair.path else "") for pair in apart)
        remedy = "training works through host memory, slower; IOMMU or ACS in the BIOS often forbids it"
        return CheckResult("topology", "warn", f"{detail}; no direct access between {named}", remedy)
    return CheckResult("topology", "pass", f"{detail}, all pairs reach each other directly")
