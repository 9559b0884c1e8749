"""Choosing metrics by what a person types."""

from __future__ import annotations

import pytest

from gputui.curves.metric_names import filter_names
from tests.texts import mentions

NAMES = ("loss", "val/loss", "val/acc", "lr", "grad_norm", "Layer.0.norm")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", NAMES),
        ("loss", ("loss", "val/loss")),
        ("LOSS", ("loss", "val/loss")),
        ("val/*", ("val/loss", "val/acc")),
        ("l?", ("lr",)),
        ("loss lr", ("loss", "val/loss", "lr")),
        ("!val", ("loss", "lr", "grad_norm", "Layer.0.norm")),
        ("loss !val/*", ("loss",)),
        ("~^l", ("loss", "lr", "Layer.0.norm")),
        ("~norm$", ("grad_norm", "Layer.0.norm")),
        ("~a b", ()),
        ("nothing", ()),
        ("*", NAMES),
        ("[", ()),
    ],
)
def test_patterns(pattern: str, expected: tuple[str, ...]) -> None:
    found = filter_names(NAMES, pattern)
    assert found.names == expected
    assert found.problem is None


@pytest.mark.parametrize("pattern", ["~(", "~[", "~a{99999999999}", "~*"])
def test_a_bad_expression_is_an_answer(pattern: str) -> None:
    found = filter_names(NAMES, pattern)
    assert found.names == NAMES
    assert mentions(found.problem, "regular expression")
