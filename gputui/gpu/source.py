"""Where samples come from: the protocol that the driver's source and the simulated one share.

A source lives in the sampler process only and in one thread of it; any of its methods may block for as long as the
driver does. ``at`` is UTC unix seconds and becomes the time of what is returned.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Protocol

from gputui.gpu.model import FastTick, GpuEvent, Inventory, Occupant, ProcessTick, SlowTick

LOG_PREFIX = "gputui.gpu.sampler: "


def say(text: str) -> None:
    """One line to standard error, which is a log that others may write to as well."""
    print(f"{LOG_PREFIX}{text}", file=sys.stderr, flush=True)  # noqa: T201


class FreshProcessNeededError(Exception):
    """This process cannot get at the driver any more (it holds a library of another version); a new one may."""


class Source(Protocol):
    """What the sampler reads. None of the methods raises for what a driver answers: an unknown value is None, a GPU
    that is gone has its state, and a machine without a driver is an Inventory with its ``problem``."""

    def inventory(self, at: float) -> Inventory:
        """Open or reopen the source, and list its GPUs.

        Raises FreshProcessNeededError.
        """

    def recheck_after_seconds(self) -> float | None:
        """None while all is well; else how long to wait, at least, before asking for the inventory again."""

    def fast(self, at: float) -> FastTick: ...

    def slow(self, at: float) -> SlowTick: ...

    def processes(self, at: float) -> ProcessTick: ...

    def link_step(self) -> None:
        """Read the PCIe link of the next GPU in turn, and what else changes seldom; later ticks report it."""

    def events(self, at: float) -> list[GpuEvent]:
        """What happened since the last call; never waits for something to happen."""

    def occupy(self, occupants: Sequence[Occupant]) -> None:
        """Our processes on the GPUs, as of now."""

    def close(self) -> None: ...
