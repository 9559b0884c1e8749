"""The sampler's messages: what goes in comes out, and what is broken is named."""

from __future__ import annotations

import math

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.gpu.model import FastTick, GpuEvent, GpuSample, Inventory, Occupant, ProcessTick, SlowTick
from gputui.gpu.wire import Message, WireCommand, decode, decode_command, encode, encode_interval, encode_occupants
from gputui.store.series import HostSample

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
    assert decode_command(encode_occupants(occupants)) == WireCommand(occupants=tuple(occupants))


@given(st.binary(max_size=200))
def test_garbage_raises_value_error_only(line: bytes) -> None:
    with pytest.raises(ValueError):
        decode(line)


def test_intervals_survive_the_wire() -> None:
    assert decode_command(encode_interval(2.5)) == WireCommand(interval=2.5)


def test_unknown_stays_none_and_zero_stays_zero() -> None:
    tick = FastTick(1.0, (GpuSample("a", utilization_percent=0.0, throttle_reasons=()), GpuSample("b")))
    sent = orjson.loads(encode(tick))["gpus"]
    assert (sent[0]["utilization_percent"], sent[1]["utilization_percent"]) == (0.0, None)
    assert decode(encode(tick)) == tick


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_json_lacks_becomes_unknown(value: float) -> None:
    tick = decode(encode(FastTick(1.0, (GpuSample("a", power_watts=value),))))
    assert isinstance(tick, FastTick)
    assert tick.gpus[0].power_watts is None


def test_keys_of_a_newer_version_are_passed_over() -> None:
    line = b'{"kind": "fast", "at": 1, "later": {}, "gpus": [{"uuid": "a", "petaflops": 3}]}'
    assert decode(line) == FastTick(1.0, (GpuSample("a"),))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "missing required field `kind`"),
        (b'{"kind": ["fast"]}', "$.kind"),
        (b'{"kind": "slower"}', "Invalid value 'slower' - at `$.kind`"),
        (b'{"kind": "fast", "gpus": []}', "missing required field `at`"),
        (b'{"kind": "fast", "at": "now", "gpus": []}', "Expected `float`, got `str` - at `$.at`"),
        (b'{"kind": "fast", "at": true, "gpus": []}', "Expected `float`, got `bool` - at `$.at`"),
        (b'{"kind": "fast", "at": 1, "gpus": {}}', "Expected `array`, got `object` - at `$.gpus`"),
        (
            b'{"kind": "fast", "at": 1, "gpus": [{"uuid": "a"}, {"uuid": "b", "memory_used_bytes": 1.5}]}',
            "`$.gpus[1].memory_used_bytes`",
        ),
        (b'{"kind": "fast", "at": 1, "gpus": [{"uuid": "a", "state": "odd"}]}', "`$.gpus[0].state`"),
        (b'{"kind": "fast", "at": 1, "gpus": [7]}', "Expected `object`, got `int` - at `$.gpus[0]`"),
        (
            b'{"kind": "processes", "at": 1, "processes": {"a": [{"pid": null}]}}',
            "Expected `int`, got `null` - at `$.processes[...][0].pid`",
        ),
        (b'{"kind": "processes", "at": 1, "processes": []}', "Expected `object`, got `array` - at `$.processes`"),
        (b'{"kind": "event", "at": 1, "uuid": 5, "event": "xid"}', "Expected `str`, got `int` - at `$.uuid`"),
    ],
)
def test_malformed_lines_are_named(line: bytes, said: str) -> None:
    with pytest.raises(ValueError) as raised:
        decode(line)
    assert said in str(raised.value)


@pytest.mark.parametrize("line", [b'{"interval": 0}', b'{"interval": "1"}', b'{"occupants": [{}]}', b"null"])
def test_malformed_commands_are_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        decode_command(line)
