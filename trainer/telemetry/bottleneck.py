"""What limits the speed, from the times of all ranks. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from trainer.telemetry.timing import StepDurations

Kind = Literal["data", "compute", "communication", "idle", "unknown"]

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
    # The rank that waits longest for data delays all others.
    data = max(times.data for times in ranks) / step
    exchange = _exchange_share(ranks, step)
    wait = _wait_share(ranks, step)
    figures = {"step_time": step, "data_share": data}
    for name, value in (("comm_share", exchange), ("device_wait_share", wait), ("device_busy", device_busy)):
        if value is not None:
            figures[name] = value

    slow = straggler(ranks)
    if slow is not None:
        return _blame(slow, ranks, figures)
    host_is_ahead = (device_busy or 0.0) >= BUSY_SHARE or (wait or 0.0) >= HOST_AHEAD_SHARE
    if data >= NOTABLE_SHARE and not host_is_ahead and data >= (exchange or 0.0):
        return Bottleneck(
            "data",
            f"Waiting for data takes {data:.0%} of a step: more workers (--num-workers), or a cache (--cache-bytes).",
            figures,
        )
    if exchange is not None and exchange >= NOTABLE_SHARE:
        return Bottleneck(
            "communication",
            f"Waiting for the exchange between ranks takes {exchange:.0%} of a step: exchange less often "
            "(--grad-accum) or less (--compress-gradients).",
            figures,
        )
    if on_gpu and device_busy is not None and device_busy < IDLE_SHARE:
        return _idle(f"is busy for only {device_busy:.0%} of a step", figures)
    if on_gpu and device_busy is None:
        if wait is None:
            return Bottleneck(
                "unknown",
                "Neither data nor the exchange takes long; a trace (--trace-every) tells whether the device is busy.",
                figures,
            )
        if wait < HOST_AHEAD_SHARE:
            return _idle("never keeps the host waiting", figures)
    busy = f", the device is busy for {device_busy:.0%} of it" if device_busy is not None else ""
    return Bottleneck("compute", f"The arithmetic sets the pace: data takes {data:.0%} of a step{busy}.", figures)


def straggler(ranks: Sequence[StepDurations]) -> int | None:
    """The rank whose own time exceeds the mean of the others by STRAGGLER_EXCESS; None if there is none."""
    if len(ranks) < 2 or any(times.exchange is None for times in ranks):
        return None
    own = own_seconds(ranks)
    slowest = max(range(len(own)), key=own.__getitem__)
    others = (sum(own) - own[slowest]) / (len(own) - 1)
    return slowest if own[slowest] > others * (1 + STRAGGLER_EXCESS) else None


def own_seconds(ranks: Sequence[StepDurations]) -> list[float]:
    """Each rank's step time without waiting for other ranks; the whole step if that is unknown."""
    return [max(times.step - (times.exchange or 0.0), 0.0) for times in ranks]


def _exchange_share(ranks: Sequence[StepDurations], step: float) -> float | None:
    """The share of the collectives themselves: what even the last rank to arrive waits for."""
    waits = [times.exchange for times in ranks if times.exchange is not None]
    return min(waits) / step if len(ranks) > 1 and len(waits) == len(ranks) else None


def _wait_share(ranks: Sequence[StepDurations], step: float) -> float | None:
    waits = [times.device_wait for times in ranks if times.device_wait is not None]
    return sum(waits) / len(waits) / step if waits else None


def _blame(slow: int, ranks: Sequence[StepDurations], figures: dict[str, float]) -> Bottleneck:
    own = own_seconds(ranks)
    others = (sum(own) - own[slow]) / (len(own) - 1)
    other_data = (sum(times.data for times in ranks) - ranks[slow].data) / (len(ranks) - 1)
    waits_for_data = ranks[slow].data - other_data > (own[slow] - others) / 2
    cause = "its data arrives late" if waits_for_data else "its own work takes longer"
    return Bottleneck(
        "data" if waits_for_data else "compute",
        f"Rank {slow} holds up the others: {own[slow]:.3g} s a step against {others:.3g} s, because {cause}.",
        figures | {"straggler_time": own[slow], "others_time": others},
        slow,
    )


def _idle(finding: str, figures: dict[str, float]) -> Bottleneck:
    return Bottleneck(
        "idle",
        f"The device {finding}: the host cannot feed it; larger micro batches (--batch-size) or --compile.",
        figures,
    )
