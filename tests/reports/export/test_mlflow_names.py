"""Names that MLflow would refuse, as its own validator judges them."""

from __future__ import annotations

import pytest

from gputui.reports.export.mlflow_sink import _name, _params

ODD = (
    "grad//norm", "/loss", "loss/", "./x", "layer.0/../w", "../x", "..", ".", "", "/", "...x", "a/./b", "//", "a/..",
    "rank1//x", "val/acc,uracy", "x" * 251, "é" * 300, "a/" * 300, "." * 400, "\ud800", "loss\n",
)  # fmt: skip


def test_mlflow_takes_every_name() -> None:
    validation = pytest.importorskip("mlflow.utils.validation")
    for name in ODD:
        made = _name(name)
        validation._validate_metric_name(made)
        validation._validate_param_name(made)
        assert made and len(made) <= validation.MAX_ENTITY_KEY_LENGTH == 250


def test_names_that_are_well_stay_and_others_stay_apart() -> None:
    for name in ("loss", "val/acc", "layer.0/w", "x" * 250, "a b:c-d"):
        assert _name(name) == name
    assert [_name(name) for name in ODD[:5]] == ["grad/norm", "loss", "loss", "x", "layer.0/__/w"]
    assert len({_name("x" * 260 + end) for end in "abc"}) == 3
    made = _params({"a//b": 1, "a/b": 2, "a/b/": 3})
    assert sorted(made.values()) == ["1", "2", "3"] and made["a/b"] == "1"
