"""Reading of one line: every kind of line has an answer, and none raises."""

from __future__ import annotations

import json
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.metrics.contract import MAX_LINE_BYTES, ParsedLine, Rejected, excerpt, parse_line, parse_values
from tests.tables import table
from tests.texts import mentions

DEEP = ["[" * depth + "]" * depth for depth in (300, 5000, 100_000)]
MANY = ["[" + "[]," * 9000 + "1]", "{" + ",".join(f'"k{i}": NaN' for i in range(9000)) + "}"]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3)
)
names = st.sampled_from(["step", "time", "rank", "loss", "event", "x"]) | st.text()
lines = (
    st.binary(max_size=80)
    | st.dictionaries(names, json_values).map(lambda value: json.dumps(value).encode())
    | st.dictionaries(st.just("step"), st.integers(0, 9)).map(lambda value: json.dumps(value).encode()[:-1] + b"\xff}")
)


def parsed(line: bytes) -> ParsedLine:
    answer = parse_line(line)
    assert isinstance(answer, ParsedLine), answer
    return answer


def test_a_line_is_kept_as_it_was_written() -> None:
    text = '{"step": 12, "time": 1700000000.5, "rank": 3, "loss": 0.25, "val/acc": 1e-3}'
    assert parsed(text.encode())[:4] == (12, 1700000000.5, 3, text)
    assert all(parsed(b'{"step":1}' + ending).data == '{"step":1}' for ending in (b"\r", b" ", b" \t\r"))
    assert parsed(b'{"step": 1, "x": "' + b"a" * (MAX_LINE_BYTES - 20) + b'"}').step == 1


@table(
    ("line", "step", "time"),
    [
        (b'{"step": 40.0}', 40, None),
        (b'{"step": -0.0}', 0, None),
        (b'{"step": "7"}', 7, None),
        (b'{"step": 9007199254740991}', 2**53 - 1, None),
        (b'{"event": "checkpoint"}', None, None),
        (b'{"phase": "warm-up", "step": null}', None, None),
        (b'{"step": 1, "time": 1.6e9}', 1, 1.6e9),
        *(
            (f'{{"step": 1, "time": {time}}}'.encode(), 1, None)
            for time in ("1e300", "-5", '"yesterday"', "NaN", "null", "1700000000000", "true")
        ),
    ],
)
def test_steps_and_times(line: bytes, step: int | None, time: float | None) -> None:
    assert parsed(line)[:2] == (step, time)


@table(
    ("line", "said"),
    [
        *(
            (f'{{"step": {step}}}'.encode(), "step is ")
            for step in ("1.5", "true", '"7.5"', '"seven"', "[1]", "-1", "9007199254740992", "1e30", "NaN", "Infinity")
        ),
        (b'{"loss": 1}', "no step"),
        *((f'{{"step": 1, "rank": {rank}}}'.encode(), "rank") for rank in ('"a"', "1.5", "-1", "true", "[]")),
        *((line, "not a JSON object") for line in (b"[1]", b"7", b"null", b"hello", b'"step"')),
        *((line, "not JSON") for line in (b'{"step": 1', b'{"step": 1}}', b"{'step': 1}", b'{"step": \x01}')),
        (b'{"step": 13, "loss": 0.1}{"step": 14, "loss": 0.05}', "not JSON"),  # two ranks in one line
        (b'{"step": 1, "loss": nan}', "not JSON"),
        (b'{"step": 1, "x": ' + b"9" * 5000 + b"}", "digits"),
        (b"\xff\xfes\0t\0", "UTF-16"),
        (b'{"step": 1, "x": "\xff"}', "UTF-8"),
        (b"\0\0\0", "power cut"),
        (b"{" * 10_000, "not JSON"),
        *((f'{{"step": 1, "x": {inner}}}'.encode(), "deep") for inner in DEEP),
        *((f'{{"step": 1, "x": {inner}}}'.encode(), "values") for inner in MANY),
    ],
)
def test_broken_lines_have_a_reason(line: bytes, said: str) -> None:
    answer = parse_line(line)
    assert isinstance(answer, Rejected)
    assert mentions(answer.reason, said)


@table(
    ("line", "data"),
    [
        (
            '{"step": 3, "a": NaN, "b": Infinity, "c": -Infinity, "d": 1e999, "e": [NaN, {"f": NaN}]}',
            {"step": 3, "a": "NaN", "b": "Infinity", "c": "-Infinity", "d": "Infinity", "e": ["NaN", {"f": "NaN"}]},
        ),
        (
            '{"step": 1, "n": 123456789012345678901234567890, "x": NaN}',
            {"step": 1, "n": 1.2345678901234568e29, "x": "NaN"},
        ),
        ('{"step": 1, "note": "\\ud800", "\\udfff": 2}', {"step": 1, "note": "\ufffd", "\ufffd": 2}),
        ("\0" * 500 + '{"step": 2}', {"step": 2}),
    ],
)
def test_values_that_json_or_sqlite_lack(line: str, data: dict[str, object]) -> None:
    answer = parsed(line.encode())
    assert json.loads(answer.data, parse_constant=pytest.fail) == data
    answer.data.encode("utf-8")


def test_other_lines() -> None:
    assert all(parse_line(line) is None for line in (b"", b"   ", b"\r", b"\t \r"))
    answer = parsed(b'{"step": 1, "gen\\u00e4hert\\/x": 4}')
    row = sqlite3.connect(":memory:").execute("SELECT ? ->> ?", (answer.data, '$."genähert/x"')).fetchone()
    assert row == (4,)
    assert parse_values({"step": 3, "loss": float("nan")})[3] == '{"step":3,"loss":"NaN"}'
    text = excerpt(b"\x00\xff\x1b[31m" + "\u202e".encode() + b"\r\n" + b"x" * 1000)
    assert text.isprintable()
    assert len(text) == 200
    assert text.startswith("\\x00\\xff\\x1b[31m\\u202e\\r\\n")


@given(lines)
def test_any_line_has_an_answer_that_sqlite_understands(line: bytes) -> None:
    answer = parse_line(line)
    if isinstance(answer, ParsedLine):
        valid = sqlite3.connect(":memory:").execute("SELECT json_valid(?)", (answer.data,)).fetchone()
        assert valid == (1,)
        assert json.loads(answer.data, parse_constant=pytest.fail).keys() == answer.values.keys()
    elif answer is not None:
        assert 0 < len(answer.reason) < 100
        assert answer.reason.isprintable()
    assert len(excerpt(line)) <= 200
