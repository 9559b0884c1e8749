"""What one line says: every kind of line has an answer, and none raises."""

from __future__ import annotations

import json
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.metrics.contract import MAX_LINE_BYTES, ParsedLine, Rejected, excerpt, parse_line, parse_values
from tests.texts import mentions


def parsed(line: bytes) -> ParsedLine:
    answer = parse_line(line)
    assert isinstance(answer, ParsedLine), answer
    return answer


def reason(line: bytes) -> str:
    answer = parse_line(line)
    assert isinstance(answer, Rejected), answer
    return answer.reason


def test_a_line_is_kept_as_it_was_written() -> None:
    text = '{"step": 12, "time": 1700000000.5, "rank": 3, "loss": 0.25, "val/acc": 1e-3}'
    assert parsed(text.encode())[:4] == (12, 1700000000.5, 3, text)


def test_space_around_a_line_is_not_kept() -> None:
    for ending in [b"\r", b" ", b" \t\r"]:
        assert parsed(b'{"step":1}' + ending).data == '{"step":1}'


def test_a_blank_line_says_nothing() -> None:
    for line in [b"", b"   ", b"\r", b"\t \r"]:
        assert parse_line(line) is None


def test_nan_and_infinities_are_values() -> None:
    answer = parsed(b'{"step": 3, "loss": NaN, "a": Infinity, "b": -Infinity, "c": 1e999, "d": [NaN, {"e": NaN}]}')
    assert json.loads(answer.data, parse_constant=pytest.fail) == {
        "step": 3, "loss": "NaN", "a": "Infinity", "b": "-Infinity", "c": "Infinity", "d": ["NaN", {"e": "NaN"}],
    }  # fmt: skip


def test_whole_steps() -> None:
    for text, step in [("40", 40), ("40.0", 40), ("0", 0), ("-0.0", 0), ("9007199254740991", 2**53 - 1)]:
        assert parsed(f'{{"step": {text}}}'.encode()).step == step


def test_other_steps_are_refused() -> None:
    for text in [
        "1.5", "true", '"7"', "[1]", "-1", "-3.0", "9007199254740992", "9223372036854775807",
        "1e30", "NaN", "Infinity",
    ]:  # fmt: skip
        assert reason(f'{{"step": {text}}}'.encode()).startswith("step is ")


def test_without_a_step_only_events_and_phases() -> None:
    assert parsed(b'{"event": "checkpoint"}').step is None
    assert parsed(b'{"phase": "warm-up", "step": null}').step is None
    assert reason(b'{"loss": 1}') == "no step"


def test_a_time_that_is_no_date_is_unknown() -> None:
    for text in ["1e300", "-5", '"yesterday"', "NaN", "null", "1700000000000", "true"]:
        assert parsed(f'{{"step": 1, "time": {text}}}'.encode()).time is None


def test_a_rank_that_is_no_number_is_refused() -> None:
    for text in ['"0"', "1.5", "-1", "true", "[]"]:
        assert mentions(reason(f'{{"step": 1, "rank": {text}}}'.encode()), "rank", "whole number")


def test_broken_lines_have_a_reason() -> None:
    for line in [
        b"[1]", b"7", b'"step"', b"null", b"hello", b"\xff\xfe{}", b'{"step": 1', b'{"step": 1}}',
        b"{'step': 1}", b'{"step": 1, "loss": nan}', b"\x1b[31m", b"\0\0\0", b'{"step": \x01}',
        b"{" * 10_000, b'{"step": 1, "x": ' + b"9" * 5000 + b"}",
    ]:  # fmt: skip
        assert reason(line)


def test_deep_nesting_is_refused_before_it_reaches_the_database() -> None:
    for depth in [300, 900, 5000, 100_000]:
        for inner in (
            b"[" * depth + b"]" * depth,
            b'{"a":' * depth + b"1" + b"}" * depth,
            b"[" * depth + b"NaN" + b"]" * depth,
        ):
            assert "deep" in reason(b'{"step": 1, "x": ' + inner + b"}")


def test_a_line_of_thousands_of_values_is_refused() -> None:
    """Each would cost the agent's loop much of a turn."""
    for inner in ["[" + "[]," * 9000 + "1]", "{" + ",".join(f'"k{i}": NaN' for i in range(9000)) + "}"]:
        assert "values" in reason(f'{{"step": 1, "x": {inner}}}'.encode())


def test_numbers_beyond_64_bits_become_floats() -> None:
    answer = parsed(b'{"step": 1, "tokens": 123456789012345678901234567890, "loss": NaN}')
    assert json.loads(answer.data) == {"step": 1, "tokens": 1.2345678901234568e29, "loss": "NaN"}


def test_lone_surrogates_are_replaced() -> None:
    answer = parsed(b'{"step": 1, "note": "\\ud800", "\\udfff": 2}')
    assert json.loads(answer.data) == {"step": 1, "note": "\ufffd", "\ufffd": 2}
    answer.data.encode("utf-8")


def test_zeros_left_by_a_power_cut_do_not_hide_the_line_behind_them() -> None:
    assert parsed(b"\0" * 500 + b'{"step": 2}').data == '{"step": 2}'


def test_escaped_names_are_found_by_sql() -> None:
    answer = parsed(b'{"step": 1, "gen\\u00e4hert\\/x": 4}')
    found = sqlite3.connect(":memory:").execute("SELECT ? ->> ?", (answer.data, '$."genähert/x"')).fetchone()
    assert found == (4,)


def test_an_excerpt_is_short_and_cannot_drive_a_terminal() -> None:
    text = excerpt(b"\x00\xff\x1b[31m" + "\u202e".encode() + b"\r\n" + b"x" * 1000)
    assert text.isprintable() and len(text) == 200
    assert text.startswith("\\x00\\xff\\x1b[31m\\u202e\\r\\n")


def test_decoded_lines_take_the_same_way() -> None:
    assert parse_values({"step": 3, "loss": float("nan")})[3] == '{"step":3,"loss":"NaN"}'
    deep: list[object] = []
    for _ in range(500):
        deep = [deep]
    assert isinstance(parse_values({"step": 1, "x": deep}), Rejected)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3)
)
lines = (
    st.binary(max_size=80)
    | st.dictionaries(st.sampled_from(["step", "time", "rank", "loss", "event", "x"]) | st.text(), json_values).map(
        lambda value: json.dumps(value).encode()
    )
    | st.dictionaries(st.just("step"), st.integers(0, 9)).map(lambda value: json.dumps(value).encode()[:-1] + b"\xff}")
)


@given(lines)
def test_any_line_has_an_answer_that_sqlite_understands(line: bytes) -> None:
    answer = parse_line(line)
    if isinstance(answer, ParsedLine):
        database = sqlite3.connect(":memory:")
        assert database.execute("SELECT json_valid(?), json_type(?)", (answer.data, answer.data)).fetchone() == (
            1,
            "object",
        )
        assert json.loads(answer.data, parse_constant=pytest.fail).keys() == answer.values.keys()
    elif answer is not None:
        assert 0 < len(answer.reason) < 100 and answer.reason.isprintable()
    assert len(excerpt(line)) <= 200


def test_the_longest_line_is_a_line() -> None:
    line = b'{"step": 1, "x": "' + b"a" * (MAX_LINE_BYTES - 20) + b'"}'
    assert len(line) == MAX_LINE_BYTES
    assert parsed(line).step == 1
