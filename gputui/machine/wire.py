"""The messages between the agent and its sampler: one JSON object per line, in both directions.

Unknown keys are ignored, so that two versions can talk to each other. Other errors are a ValueError that names the
place.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from gputui.machine.gpu_model import FastTick, GpuEvent, Inventory, Occupant, ProcessTick, SlowTick
from gputui.store.series import HostSample

Message = Inventory | FastTick | SlowTick | ProcessTick | GpuEvent | HostSample


class WireCommand(Struct, frozen=True):
    """The agent's command to its sampler; None changes nothing."""

    occupants: tuple[Occupant, ...] | None = None
    interval: float | None = None


def encode(message: Message) -> bytes:
    """A line with its newline. NaN and infinities become null."""
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes) -> Message:
    """Parse a line. Raises ValueError."""
    try:
        return _messages().decode(line)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a message of the sampler ({error}): {line[:60]!r}") from None


def encode_occupants(occupants: Iterable[Occupant]) -> bytes:
    return msgspec.json.encode({"occupants": list(occupants)}) + b"\n"


def encode_interval(seconds: float) -> bytes:
    return msgspec.json.encode({"interval": seconds}) + b"\n"


def decode_command(line: bytes) -> WireCommand:
    """Parse a command. Raises ValueError."""
    try:
        command = msgspec.json.decode(line, type=WireCommand)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a command to the sampler ({error}): {line[:60]!r}") from None
    if command.interval is not None and not command.interval > 0:
        raise ValueError(f"the interval is {command.interval}, expected more than 0")
    return command


# Made at the first message: it resolves the annotations of all fields.
@functools.cache
def _messages() -> msgspec.json.Decoder[Message]:
    return msgspec.json.Decoder(Message)
