"""The speed of a run: the peak rates of GPUs, of which it reports its share (MFU), and what limits it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch

from trainer.telemetry.timing import StepDurations, mean_known

if TYPE_CHECKING:  # the benchmark asks for peaks where there is torch and nothing else
    from trainer.config import Settings

Arithmetic = Literal["half", "tf32", "fp32"]
Kind = Literal["data", "compute", "communication", "idle", "unknown"]

# Dense matrix products per second in floating-point operations, without sparsity, in half precision, TF32 and fp32:
# NVIDIA's data sheets and architecture white papers. The first name found in the device's name counts.
_PEAKS: tuple[tuple[str, float, float, float], ...] = (
    ("B200", 2250e12, 1100e12, 75e12),
    ("GH200", 989e12, 494e12, 67e12),
    ("H200", 989e12, 494e12, 67e12),
    ("H100 PCIe", 756e12, 378e12, 51e12),
    ("H100 NVL", 835e12, 417e12, 60e12),
    ("H100", 989e12, 494e12, 67e12),
    ("A100", 312e12, 156e12, 19.5e12),
    ("A6000", 155e12, 77.4e12, 38.7e12),
    ("L40S", 362e12, 183e12, 91.6e12),
    ("RTX 5090", 209.5e12, 104.8e12, 104.8e12),
    ("RTX 4090", 165.2e12, 82.6e12, 82.6e12),
    ("RTX 3090", 71e12, 35.6e12, 35.6e12),
    ("V100", 125e12, 15.7e12, 15.7e12),
)

# The share of a step that is worth acting on. Below it, noise would change the verdict.
NOTABLE_SHARE = 0.15
# Ranks of equal hardware differ by a few per cent; a larger difference has a cause.
STRAGGLER_EXCESS = 0.15
# Above it, the host can save at most a tenth of the step.
BUSY_SHARE = 0.90
# Below it, gaps between kernels cost more than a quarter of the device's time.
IDLE_SHARE = 0.75
# A host that waits longer for its device is ahead of it; else the device waits for the host.
HOST_AHEAD_SHARE = 0.05


def peak_flops(device_name: str, arithmetic: Arithmetic) -> float | None:
    """Peak operations per second of a GPU by its name, such as ``NVIDIA H200``; None if it is not in the table."""
    for name, half, tf32, fp32 in _PEAKS:
        if name in device_name:
            return {"half": half, "tf32": tf32, "fp32": fp32}[arithmetic]
    return None


def peak_of(settings: Settings, device: torch.device) -> float | None:
    """Peak operations per second of the device in the arithmetic that the settings ask for; None where unknown."""
    if device.type != "cuda":
        return None
    arithmetic: Arithmetic = "half"
    if settings.precision == "fp32":
        arithmetic = "tf32" if settings.tf32 and not settings.deterministic else "fp32"
    return peak_flops(torch.cuda.get_device_name(device), arithmetic)


@dataclass(frozen=True)
class Bottleneck:
    """What limits the speed: a sentence, figures (seconds, and shares 0..1), and a slow rank, if any."""

    kind: Kind
    sentence: str
    figures: dict[str, float] = field(default_factory=dict)
    straggler: int | None = None


def verdict(ranks: Sequence[StepDurations], *, on_gpu: bool, device_busy: float | None = None) -> Bottleneck:
    """Find the bottleneck from each rank's mean times, by rank, and a trace's share of device time, if any."""
    if not ranks or min(times.step for times in ranks) <= 0:
        return Bottleneck("unknown", "No steps have been measured yet.")
    step = sum(times.step for times in ranks) / len(ranks)
    data = max(times.data for times in ranks) / step  # the rank that waits longest for data delays all others
    waits = [times.exchange for times in ranks if times.exchange is not None]
    # Of the collectives themselves: what even the last rank to arrive waits for.
    exchange = min(waits) / step if len(ranks) > 1 and len(waits) == len(ranks) else None
    device_wait = mean_known([times.device_wait for times in ranks])
    ahead = None if device_wait is None else device_wait / step
    shares = {"data_share": data, "comm_share": exchange, "device_wait_share": ahead, "device_busy": device_busy}
    figures = {"step_time": step, **{name: share for name, share in shares.items() if share is not None}}

    if exchange is not None and (blamed := _straggler(ranks, figures)):
        return blamed
    busy, wait = device_busy or 0.0, ahead or 0.0
    feed = "the host cannot feed it; larger micro batches (--batch-size) or --compile."
    if data >= NOTABLE_SHARE and busy < BUSY_SHARE and wait < HOST_AHEAD_SHARE and data >= (exchange or 0.0):
        return Bottleneck(
            "data", f"Waiting for data takes {data:.0%} of a step: more workers (--num-workers).", figures
        )
    if exchange is not None and exchange >= NOTABLE_SHARE:
        sentence = f"Waiting for the exchange between ranks takes {exchange:.0%} of a step: exchange less often "
        return Bottleneck("communication", f"{sentence}(--grad-accum) or less (--compress-gradients).", figures)
    if on_gpu and device_busy is not None and device_busy < IDLE_SHARE:
        return Bottleneck("idle", f"The device is busy for only {device_busy:.0%} of a step: {feed}", figures)
    if on_gpu and device_busy is None and ahead is None:
        sentence = "Neither data nor the exchange takes long; a trace (--trace-every) tells whether the device is busy."
        return Bottleneck("unknown", sentence, figures)
    if on_gpu and device_busy is None and wait < HOST_AHEAD_SHARE:
        return Bottleneck("idle", f"The device never keeps the host waiting: {feed}", figures)
    share = "" if device_busy is None else f", the device is busy for {device_busy:.0%} of it"
    return Bottleneck("compute", f"The arithmetic sets the pace: data takes {data:.0%} of a step{share}.", figures)


def _straggler(ranks: Sequence[StepDurations], figures: dict[str, float]) -> Bottleneck | None:
    """A rank whose time without waiting for others exceeds the mean of theirs by STRAGGLER_EXCESS."""
    own = [max(times.step - (times.exchange or 0.0), 0.0) for times in ranks]
    slow = max(range(len(own)), key=own.__getitem__)
    others = (sum(own) - own[slow]) / (len(own) - 1)
    if own[slow] <= others * (1 + STRAGGLER_EXCESS):
        return None
    other_data = (sum(times.data for times in ranks) - ranks[slow].data) / (len(ranks) - 1)
    late = ranks[slow].data - other_data > (own[slow] - others) / 2
    cause = "its data arrives late" if late else "its own work takes longer"
    sentence = f"Rank {slow} holds up the others: {own[slow]:.3g} s a step against {others:.3g} s, because {cause}."
    figures |= {"straggler_time": own[slow], "others_time": others}
    return Bottleneck("data" if late else "compute", sentence, figures, slow)
