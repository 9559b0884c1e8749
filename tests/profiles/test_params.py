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
SGD = {"choices": ("sgd", "adam")}
ONE = {"choices": (1, 2)}
EIGHTS = {"multiple_of": 8}


def parse(default: Scalar, raw: Scalar, **limits: Any) -> Scalar:
    return Parameter("p", default, **limits).parse(raw)


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
    ("default", "raw", "limits", "value"),
    [
        (16, "24", EIGHTS, 24), (2, "4", {"minimum": 1, "maximum": 4}, 4), (None, "none", {"minimum": 0}, None),
        ("sgd", "adam", SGD, "adam"), (1, "2", ONE, 2), ("fp32", "none", {"choices": (None, "fp32")}, None),
    ],
)  # fmt: skip
def test_what_is_within_the_limits(default: Scalar, raw: Scalar, limits: dict[str, Any], value: Scalar) -> None:
    assert parse(default, raw, **limits) == value


@table(
    ("default", "value", "limits", "phrases"),
    [
        (128, "lots", {}, ("whole number", "'lots'")), (128, "١٢", {}, ("whole number", "'١٢'")),
        (128, True, {}, ("whole number", "true")), (0.1, "fast", {}, ("expected a number", "'fast'")),
        (0.1, "1e999", {}, ("finite number", "'1e999'")), (True, "maybe", {}, ("true or false", "'maybe'")),
        (True, 1, {}, ("true or false", "1")), ("x", 5, {}, ("text", "5")), ("x", "a\0b", {}, ("NUL", "'a\0b'")),
        (16, "25", EIGHTS, ("multiple of 8", "'25'")),
        (16, "0", {**EIGHTS, "minimum": 8}, ("multiple of 8", "at least 8", "'0'")),
        (2, "5", {"minimum": 1, "maximum": 4}, ("whole number", "1 to 4", "'5'")),
        (0.5, "-0.1", {"minimum": 0}, ("number", "at least 0", "'-0.1'")),
        (0.5, "2", {"maximum": 1.5}, ("number", "at most 1.5", "'2'")),
        (None, "abc", {"minimum": 0}, ("number", "at least 0", "'abc'")),
        ("sgd", "adm", SGD, ("sgd or adam", "'adm'")), (1, "3", ONE, ("1 or 2", "'3'")),
        (1, True, ONE, ("1 or 2", "true")),
    ],
)  # fmt: skip
def test_what_a_parameter_cannot_be(
    default: Scalar, value: Scalar, limits: dict[str, Any], phrases: tuple[str, ...]
) -> None:
    with pytest.raises(ParameterError) as caught:
        parse(default, value, **limits)
    (problem,) = caught.value.problems
    assert mentions(problem, "p: ", *phrases)


@pytest.mark.parametrize(
    ("value", "limits", "has_hint"),
    [
        ("0.5", {}, True),
        (0.5, {}, True),
        ("99", {"maximum": 16}, False),
        (99, {"maximum": 16}, False),
        ("x", {}, False),
    ],
)
def test_only_a_fraction_is_told_how_a_parameter_takes_any_number(
    value: Scalar, limits: dict[str, Any], has_hint: bool
) -> None:
    with pytest.raises(ParameterError) as caught:
        parse(4, value, **limits)
    assert ("4.0" in str(caught.value)) is has_hint


@given(st.one_of(st.booleans(), INTEGERS, FLOATS, TEXT))
def test_what_is_shown_can_be_typed_again(value: bool | int | float | str) -> None:
    """A launch form shows a value as text; reading it back gives the same value of the same type."""
    parsed = parse(value, format_value(value))
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
    assert mentions(close, "batch_sise: ", "batch_size?")
    assert mentions(wrong, "lr: ", "number", "'x'")
    assert mentions(odd, "zzz: ", "batch_size, lr")
    with pytest.raises(ParameterError, match="this profile has none"):
        apply({}, {"lr": "1"})
