"""Numbers read as people write them; what is unknown never looks like a number."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.core import units
from gputui.metrics.draw.ticks import tick_labels

ALL = [
    units.bytes_text, units.gibibytes, units.byte_rate, units.watts, units.percent, units.celsius,
    units.short_number, units.rate, units.metric_value, units.count, units.duration, units.age,
]  # fmt: skip


def test_unknown_and_non_finite() -> None:
    expected = ["–", "nan", "inf", "-inf"]
    texts = {render.__name__: [render(value) for value in (None, math.nan, math.inf, -math.inf)] for render in ALL}
    assert texts == dict.fromkeys(texts, expected)


@given(st.floats(-1e20, 1e20).filter(lambda value: abs(value) > 1e-20 or value == 0))
def test_short_numbers_are_short_and_close(value: float) -> None:
    text = units.short_number(value)
    assert len(text) <= 9
    factor = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}.get(text[-1], 1)
    number = float(text[:-1] if factor > 1 else text) * factor
    assert number == pytest.approx(value, rel=0.0051)


def test_examples() -> None:
    examples = [
        (units.bytes_text(0), "0 B"), (units.bytes_text(1023), "1023 B"), (units.bytes_text(1536), "1.5 KiB"),
        (units.bytes_text(347 * 2**30), "347 GiB"), (units.bytes_text(2**40 - 1), "1 TiB"),
        (units.gibibytes(71.2 * 2**30), "71.2"), (units.byte_rate(1.2e9), "1.2 GB/s"),
        (units.byte_rate(0), "0 B/s"), (units.watts(612.4), "612 W"), (units.watts(3410), "3.41 kW"),
        (units.watts(999.6), "1 kW"), (units.percent(60.6), "61%"),
        (units.celsius(78), "78°C"), (units.short_number(0.00123), "0.00123"),
        (units.short_number(41_200), "41.2k"), (units.short_number(999_950), "1M"),
        (units.short_number(-0.25), "-0.25"), (units.short_number(0), "0"), (units.short_number(0.125), "0.125"),
        (units.short_number(0.0123), "0.0123"), (units.metric_value(1.9021), "1.902"),
        (units.metric_value(9.8e-4), "0.00098"), (units.metric_value(3021), "3021"),
        (units.metric_value(0.05), "0.05"), (units.metric_value(0.0501), "0.05010"),
        (units.rate(2.5), "2.50"), (units.rate(41.04), "41.0"),
        (units.rate(0.3333), "0.333"), (units.rate(1200), "1.20k"), (units.rate(0), "0"),
        (units.count(41_200), "41 200"), (units.count(999), "999"), (units.count(1_234_567), "1 234 567"),
        (units.gpu_hours(0.048), "0.05"), (units.gpu_hours(0.1), "0.1"), (units.gpu_hours(0.002), "< 0.01"),
        (units.gpu_hours(0.0), "0"), (units.gpu_hours(1.54), "1.5"), (units.gpu_hours(310.4), "310"),
        (units.duration(0), "0 s"), (units.duration(2.44), "2.4 s"), (units.duration(47), "47 s"),
        (units.duration(59.6), "1 min"), (units.duration(200), "3 min 20 s"),
        (units.duration(6120), "1 h 42 min"), (units.duration(3599.6), "1 h"),
        (units.duration(2 * 86400 + 5 * 3600), "2 d 5 h"), (units.duration(-47), "-47 s"),
        (units.age(-3), "now"), (units.age(0.4), "now"), (units.age(47), "47 s"), (units.age(7200), "2 h"),
        (units.age(9 * 86400), "9 d"),
    ]  # fmt: skip
    assert [pair for pair in examples if pair[0] != pair[1]] == []


def test_counted_things_are_plural_but_for_one() -> None:
    counted = [units.count_of(number, noun) for number in (0, 1, 1200) for noun in ("step", "process")]
    many = units.count(1200)
    assert counted == ["0 steps", "0 processes", "1 step", "1 process", f"{many} steps", f"{many} processes"]


def test_a_learning_rate_has_one_form() -> None:
    forms = {6e-4: "0.0006", 1e-3: "0.001", 3.846e-4: "0.0003846", 0.1: "0.1", 6e-5: "6e-5", 3.177e-3: "0.003177"}
    for value, text in forms.items():
        assert (units.parameter(value), units.metric_value(value)) == (text, text)
        assert float(units.short_number(value)) == float(f"{value:.3g}")
        assert tick_labels([0.0, value]) in (["0", text], ["0", units.short_number(value)])
    values = [True, None, 16, "6e-4", 0.125, 1.0, [1, 2], {"a": False}]
    texts = ["true", "null", "16", "6e-4", "0.125", "1", "[1, 2]", '{"a": false}']
    assert list(map(units.parameter, values)) == texts


def test_iso_times_are_utc_with_milliseconds() -> None:
    assert units.iso(1_795_230_764.0) == "2026-11-21T03:12:44.000Z"
    assert units.iso(None) is None
    assert [units.iso(at) for at in (float("inf"), float("-inf"), float("nan"), 1e30)] == [None] * 4
