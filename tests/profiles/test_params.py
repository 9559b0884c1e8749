"""Parameters: what ``--set`` and a form's field mean, and what they answer to nonsense."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.profiles.params import MAX_INTEGER, Parameter, ParameterError, apply, split_assignments
from gputui.runs.command import format_value
from gputui.runs.spec import Scalar
from tests.tables import table
from tests.texts import mentions

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
INTEGERS = st.integers(-MAX_INTEGER, MAX_INTEGER)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def test_only_multiples_are_taken_where_the_profile_says_so() -> None:
    assert parse(16, "24", multiple_of=8) == 24
    assert mentions(error_of(16, "25", multiple_of=8), "p: ", "multiple of 8", "'25'")
    assert mentions(error_of(16, "0", multiple_of=8, minimum=8), "p: ", "multiple of 8", "at least 8", "'0'")


def parse(default: Scalar, given: Scalar, **limits: Any) -> Scalar:
    return Parameter("p", default, **limits).parse(given)


def error_of(default: Scalar, given: Scalar, **limits: Any) -> str:
    with pytest.raises(ParameterError) as caught:
        parse(default, given, **limits)
    (problem,) = caught.value.problems
    return problem


@table(
    ("default", "text", "value"),
    [
        (128, "96", 96), (128, " 96 ", 96), (128, "-1", -1), (128, "1_000", 1000),
        (0.1, "1e-3", 0.001), (0.1, "1", 1.0), (0.1, ".5", 0.5), (0.1, "-2.", -2.0),
        (True, "false", False), (False, "YES", True), (False, "on", True), (True, "0", False), (False, "1", True),
        ("none", "oom@step=40", "oom@step=40"), ("x", "a=b@c,d", "a=b@c,d"), ("x", "", ""), ("x", "none", "none"),
        ("x", " spaced ", " spaced "), ("x", "5", "5"), ("x", "$HOME;`id`{lr}", "$HOME;`id`{lr}"),
        (None, "", None), (None, "none", None), (None, "null", None), (None, "5", 5), (None, "0.1", 0.1),
        (None, "1e-3", "1e-3"), (None, "007", "007"), (None, "true", True), (None, "True", "True"),
        (None, "abc", "abc"), (None, "inf", "inf"), (None, "9" * 25, "9" * 25),
    ],
)  # fmt: skip
def test_text_becomes_the_defaults_kind(default: Scalar, text: str, value: Scalar) -> None:
    parsed = parse(default, text)
    assert parsed == value
    assert type(parsed) is type(value)


@table(
    ("default", "given", "problem"),
    [
        (128, "lots", "p: expected a whole number, found 'lots'"),
        (128, "١٢", "p: expected a whole number, found '١٢'"),
        (128, True, "p: expected a whole number, found true"),
        (0.1, "fast", "p: expected a number, found 'fast'"),
        (0.1, "1e999", "p: expected a finite number, found '1e999'"),
        (True, "maybe", "p: expected true or false, found 'maybe'"),
        (True, 1, "p: expected true or false, found 1"),
        ("x", 5, "p: expected text, found 5"),
        ("x", "a\0b", "p: expected text without NUL characters, found 'a\0b'"),
    ],
)
def test_what_a_parameter_cannot_be(default: Scalar, given: Scalar, problem: str) -> None:
    assert error_of(default, given) == problem


def test_ranges() -> None:
    assert parse(2, "4", minimum=1, maximum=4) == 4
    assert mentions(error_of(2, "5", minimum=1, maximum=4), "p: ", "whole number", "1 to 4", "'5'")
    assert mentions(error_of(0.5, "-0.1", minimum=0), "p: ", "number", "at least 0", "'-0.1'")
    assert mentions(error_of(0.5, "2", maximum=1.5), "p: ", "number", "at most 1.5", "'2'")
    assert mentions(error_of(None, "abc", minimum=0), "p: ", "number", "at least 0", "'abc'")
    assert parse(None, "none", minimum=0) is None


def test_choices() -> None:
    assert parse("sgd", "adam", choices=("sgd", "adam")) == "adam"
    assert mentions(error_of("sgd", "adm", choices=("sgd", "adam")), "p: ", "sgd or adam", "'adm'")
    assert parse(1, "2", choices=(1, 2)) == 2
    assert mentions(error_of(1, "3", choices=(1, 2)), "p: ", "1 or 2", "'3'")
    assert mentions(error_of(1, True, choices=(1, 2)), "p: ", "1 or 2", "true")
    assert parse("fp32", "none", choices=(None, "fp32")) is None


@given(st.one_of(st.booleans(), INTEGERS, FLOATS, TEXT), st.data())
def test_what_is_shown_can_be_typed_again(default: bool | int | float | str, data: st.DataObject) -> None:
    """A launch form shows a value as text; reading it back gives the same value of the same type."""
    strategy = {bool: st.booleans(), int: INTEGERS, float: FLOATS, str: TEXT}[type(default)]
    value = data.draw(strategy)
    parsed = parse(default, format_value(value))
    assert parsed == value
    assert type(parsed) is type(value)


def test_assignments() -> None:
    assert split_assignments(["lr=0.1", "inject=oom@step=40", "note=", "lr=0.2"]) == {
        "lr": "0.2", "inject": "oom@step=40", "note": "",
    }  # fmt: skip
    with pytest.raises(ParameterError) as caught:
        split_assignments(["lr", "=5", "ok=1"])
    assert caught.value.problems == ("expected NAME=VALUE, found 'lr'", "expected NAME=VALUE, found '=5'")


def test_everything_wrong_is_said_at_once() -> None:
    parameters = {"batch_size": Parameter("batch_size", 128), "lr": Parameter("lr", 0.1)}
    assert apply(parameters, {"batch_size": "64"}) == {"batch_size": 64, "lr": 0.1}
    with pytest.raises(ParameterError) as caught:
        apply(parameters, {"batch_sise": "64", "lr": "x", "zzz": 1})
    close, wrong, odd = caught.value.problems
    assert mentions(close, "batch_sise: ", "batch_size?") and mentions(wrong, "lr: ", "number", "'x'")
    assert mentions(odd, "zzz: ", "batch_size, lr")
    with pytest.raises(ParameterError, match="this profile has none"):
        apply({}, {"lr": "1"})
