"""Columns of samples as text and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gputui.store import packs
from gputui.store.packs import Column

VALUES = st.lists(st.one_of(st.none(), st.integers(-(2**40), 2**40)), min_size=1, max_size=packs.MOST_SAMPLES)
NEAR = st.lists(st.one_of(st.none(), st.integers(-5, 40_000)), min_size=1, max_size=packs.MOST_SAMPLES)


@given(values=NEAR, scale=st.sampled_from([1, 15, 2 << 20]), data=st.data())
def test_values_come_back_exactly(values: list[int | None], scale: int, data: st.DataObject) -> None:
    scaled = [None if value is None else value * scale for value in values]
    column = packs.encode(scaled)
    count = len(values)
    assert packs.decode(column, count, 0, count) == scaled
    begin = data.draw(st.integers(0, count))
    end = data.draw(st.integers(begin, count))
    part = scaled[begin:end]
    assert packs.decode(column, count, begin, end) == part
    known = [value for value in part if value is not None]
    assert packs.sums(column, count, [(begin, end)]) == [(sum(known), len(known))]
    if begin < end:
        told = (len(known), min(known), max(known), sum(known)) if known else None
        assert packs.told(column, count, [(begin, end)]) == [told]
    if column.codes is not None:
        assert len(column.codes) in (1, count, 2 * count)
        column.codes.encode("utf-8")  # no character is half a pair


@given(values=VALUES)
def test_values_far_apart_come_back_to_a_billionth_of_their_span(values: list[int | None]) -> None:
    found = packs.decode(packs.encode(values), len(values), 0, len(values))
    known = [value for value in values if value is not None]
    span = max(known) - min(known) if known else 0
    for value, back in zip(values, found, strict=True):
        assert (value is None) == (back is None)
        assert value is None or back is None or abs(value - back) <= span / 2**30 + 0.5


@given(values=st.lists(st.integers(-(2**65), 2**65), min_size=1, max_size=6))
def test_what_64_bits_cannot_hold_is_refused(values: list[int]) -> None:
    try:
        base, scale, codes = packs.encode(values)
    except OverflowError:
        assert max(abs(value) for value in values) > 2**50
        return
    assert base is not None and scale is not None and codes is not None
    low, high = codes[: len(values)], codes[len(values) :]
    added = [scale * ord(code) for code in low]
    added = [one + scale * 32767 * ord(code) for one, code in zip(added, high, strict=True)] if high else added
    assert all(-(2**63) <= number < 2**63 for number in (base, scale, *added, *(base + one for one in added)))


def test_what_does_not_change_takes_no_room() -> None:
    assert packs.encode([7] * 100) == Column(7 - 0, 0, "!")
    assert packs.encode([None] * 100) == Column(None, None, None)
    assert packs.encode([90, 91, 95, None]).codes == '!"& '


@given(late=st.lists(st.integers(0, 90_000), min_size=1, max_size=packs.MOST_SAMPLES, unique=True))
def test_times_come_back(late: list[int]) -> None:
    times = [1_790_000_000_000 + place * 100 + at for place, at in enumerate(sorted(late))]
    packed, count = packs.encode_times(times), len(times)
    assert packs.decode_times(packed, count, 0, count) == times
    assert [packs.time_at(packed, count, place) for place in range(count)] == times
