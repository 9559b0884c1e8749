"""The values of a GPU at one moment, the protocol of what reads them, and their form on the
sampler's pipe.

``None`` means that the driver gave no value; it is never replaced by 0.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec
from msgspec import Struct

from gputui.store.series import GpuFacts as GpuFacts
from gputui.store.series import GpuProcess as GpuProcess
from gputui.store.series import GpuSample as GpuSample
from gputui.store.series import GpuSlowSample as GpuSlowSample
from gputui.store.series import GpuState as GpuState
from gputui.store.series import HostSample

# Messages of the sampler, one JSON object per line, tagged by `kind`.

BUSY_BYTES = 1 << 30
"""A process with less is a display server, or a context that does not disturb; the driver itself
holds less."""

BUSY_PERCENT = 50.0  # a display or a browser stays below

LOG_PREFIX = "gputui.machine.sampler: "


class Inventory(Struct, frozen=True, tag="inventory", tag_field="kind"):
    """The GPUs of the machine, sent at the start and whenever they change.

    Attributes:
        at: UTC unix seconds.
        gpus: A GPU stays here after it is lost.
        problem: One line with a remedy: why there are no GPUs, or which GPU is missing and why; else None.
        cuda_version: The newest CUDA that the driver supports, as ``12.4``.
    """

    at: float
    source: Literal["nvml", "simulated"]
    driver_version: str | None
    gpus: tuple[GpuFacts, ...]
    problem: str | None = None
    cuda_version: str | None = None


class FastTick(Struct, frozen=True, tag="fast", tag_field="kind"):
    """One tick of the fast tier over all GPUs. ``at`` is UTC unix seconds."""

    at: float
    gpus: tuple[GpuSample, ...]


class SlowTick(Struct, frozen=True, tag="slow", tag_field="kind"):
    """One tick of the slow tier over all GPUs."""

    at: float
    gpus: tuple[GpuSlowSample, ...]


class ProcessTick(Struct, frozen=True, tag="processes", tag_field="kind"):
    """UUID → the processes of each GPU; None without a valid list."""

    at: float
    processes: dict[str, tuple[GpuProcess, ...] | None]


class GpuEvent(Struct, frozen=True, tag="event", tag_field="kind"):
    """An event that the driver reported, such as an XID."""

    at: float
    uuid: str
    event: Literal["xid", "lost", "returned"]
    code: int | None = None
    text: str | None = None


class Occupant(Struct, frozen=True):
    """A process of a run on a GPU, sent to the sampler. Only simulated GPUs use it: their load
    follows the runs.

    Attributes:
        uuid: The UUID of the GPU.
        memory_bytes: None lets the source choose an amount for the run.
        since: The start of its attempt (UTC unix seconds).
    """

    uuid: str
    pid: int
    run_id: str
    rank: int | None = None
    memory_bytes: int | None = None
    since: float = 0.0


def unseen_use(used_bytes: int | None, utilization_percent: float | None) -> str | None:
    """The reason why a GPU without a run or a visible process is not free; None if it is, or if
    nothing is known."""
    if used_bytes is not None and used_bytes >= BUSY_BYTES:
        return f"has {used_bytes / 2**30:.0f} GiB in use by no visible process"
    if utilization_percent is not None and utilization_percent >= BUSY_PERCENT:
        return "is computing for no visible process"
    return None


def say(text: str) -> None:
    """Print a line to standard error, which is a log that others also write to."""
    print(f"{LOG_PREFIX}{text}", file=sys.stderr, flush=True)  # noqa: T201


class FreshProcessNeededError(Exception):
    """This process cannot use the driver any more, since it holds a library of another version; a
    new one may."""


class Source(Protocol):
    """The driver, as the sampler reads it. Errors of the driver raise nothing: an unknown value is
    None, a lost GPU has that state, and a machine without a driver is an Inventory with a
    ``problem``."""

    def inventory(self, at: float) -> Inventory:
        """Open or reopen the source, and list its GPUs. Raises FreshProcessNeededError."""

    def recheck_after_seconds(self) -> float | None:
        """The minimum delay before the inventory is read again; None if all is well."""

    def fast(self, at: float) -> FastTick: ...

    def slow(self, at: float) -> SlowTick: ...

    def processes(self, at: float) -> ProcessTick: ...

    def link_step(self) -> None:
        """Read the PCIe link of the next GPU, and what else changes seldom. Later ticks report
        it."""

    def events(self, at: float) -> list[GpuEvent]:
        """The events since the last call, without waiting."""

    def occupy(self, occupants: Sequence[Occupant]) -> None:
        """Set the processes of runs on the GPUs."""

    def close(self) -> None: ...


Message = Inventory | FastTick | SlowTick | ProcessTick | GpuEvent | HostSample


class WireCommand(Struct, frozen=True):
    """The agent's command to its sampler; None changes nothing."""

    occupants: tuple[Occupant, ...] | None = None
    interval: float | None = None


def encode(message: Message) -> bytes:
    """A line with its newline. NaN and infinities become null."""
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes) -> Message:
    """Parse a line. Raises msgspec.MsgspecError for one that no sampler of this version writes."""
    return _messages().decode(line)


def encode_command(command: WireCommand) -> bytes:
    return msgspec.json.encode(command) + b"\n"


def decode_command(line: bytes) -> WireCommand:
    """Parse a command. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(line, type=WireCommand)


# Made at the first message: it resolves the annotations of all fields.
@functools.cache
def _messages() -> msgspec.json.Decoder[Message]:
    return msgspec.json.Decoder(Message)
