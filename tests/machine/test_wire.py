"""The sampler's messages: what goes in comes out, and unknown stays unknown."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gputui.machine.gpu_model import (
    FastTick,
    GpuEvent,
    Inventory,
    Message,
    Occupant,
    ProcessTick,
    SlowTick,
    WireCommand,
    decode,
    decode_command,
    encode,
    encode_command,
)
from gputui.store.series import GpuSample, HostSample

# What JSON can carry: finite numbers, integers of 64 bits, text without lone surrogates.
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))
st.register_type_strategy(str, st.text(st.characters(exclude_categories=["Cs"])))


MESSAGES = st.one_of(
    [st.from_type(kind) for kind in (Inventory, FastTick, SlowTick, ProcessTick, GpuEvent, HostSample)]
)


@given(MESSAGES)
def test_every_message_survives_the_wire(message: Message) -> None:
    line = encode(message)
    assert line.endswith(b"\n")
    assert b"\n" not in line[:-1]
    assert decode(line) == message


@given(st.lists(st.builds(Occupant)))
def test_occupants_survive_the_wire(occupants: list[Occupant]) -> None:
    command = WireCommand(occupants=tuple(occupants))
    assert decode_command(encode_command(command)) == command


def test_unknown_stays_none_and_zero_stays_zero() -> None:
    tick = FastTick(1.0, (GpuSample("a", utilization_percent=0.0, throttle_reasons=()), GpuSample("b")))
    sent = orjson.loads(encode(tick))["gpus"]
    assert (sent[0]["utilization_percent"], sent[1]["utilization_percent"]) == (0.0, None)
    assert decode(encode(tick)) == tick
