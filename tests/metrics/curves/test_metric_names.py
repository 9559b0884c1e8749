"""Choosing metrics by what a person types."""

from __future__ import annotations

from gputui.metrics.curves.model import filter_names

NAMES = ("loss", "val/loss", "val/acc", "lr", "grad_norm", "Layer.0.norm")


def test_patterns() -> None:
    expected: dict[str, tuple[str, ...]] = {
        "": NAMES,
        "loss": ("loss", "val/loss"),
        "LOSS": ("loss", "val/loss"),
        "val/*": ("val/loss", "val/acc"),
        "l?": ("lr",),
        "loss lr": ("loss", "val/loss", "lr"),
        "!val": ("loss", "lr", "grad_norm", "Layer.0.norm"),
        "loss !val/*": ("loss",),
        "~^l": ("loss", "lr", "Layer.0.norm"),
        "~norm$": ("grad_norm", "Layer.0.norm"),
        "~a b": (),
        "nothing": (),
        "*": NAMES,
        "[": (),
    }
    assert {pattern: filter_names(NAMES, pattern).names for pattern in expected} == expected
    assert {filter_names(NAMES, pattern).problem for pattern in expected} == {None}
