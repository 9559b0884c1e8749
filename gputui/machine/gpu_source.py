"""The protocol of sources of samples: the driver and the simulation.

A source lives in one thread of the sampler process. Any of its methods may block as long as the driver does. ``at`` is
UTC unix seconds and becomes the time of the result.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Protocol

from gputui.machine.gpu_model import FastTick, GpuEvent, Inventory, Occupant, ProcessTick, SlowTick

LOG_PREFIX = "gputui.machine.sampler: "


def say(text: str) -> None:
    """Print a line to standard error, which is a log that others also write to."""
    print(f"{LOG_PREFIX}{text}", file=sys.stderr, flush=True)  # noqa: T201


class FreshProcessNeededError(Exception):
    """This process cannot use the driver any more, since it holds a library of another version; a new one may."""


class Source(Protocol):
    """What the sampler reads. Errors of the driver raise nothing: an unknown value is None, a lost GPU has that state,
    and a machine without a driver is an Inventory with a ``problem``."""

    def inventory(self, at: float) -> Inventory:
        """Open or reopen the source, and list its GPUs. Raises FreshProcessNeededError."""

    def recheck_after_seconds(self) -> float | None:
        """The minimum delay before the inventory is read again; None if all is well."""

    def fast(self, at: float) -> FastTick: ...

    def slow(self, at: float) -> SlowTick: ...

    def processes(self, at: float) -> ProcessTick: ...

    def link_step(self) -> None:
        """Read the PCIe link of the next GPU, and what else changes seldom. Later ticks report it."""

    def events(self, at: float) -> list[GpuEvent]:
        """The events since the last call, without waiting."""

    def occupy(self, occupants: Sequence[Occupant]) -> None:
        """Set the processes of runs on the GPUs."""

    def close(self) -> None: ...
