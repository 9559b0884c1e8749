"""Names that MLflow would refuse, as its own validator judges them, and how its address is shown."""

from __future__ import annotations

import pytest

from gputui.reports.export.mlflow_sink import UniqueNames, _valid_name, without_login

ODD = (
    "grad//norm", "/loss", "loss/", "./x", "layer.0/../w", "../x", "..", ".", "", "/", "...x", "a/./b", "//", "a/..",
    "rank1//x", "val/acc,uracy", "x" * 251, "é" * 300, "a/" * 300, "." * 400, "\ud800", "loss\n",
)  # fmt: skip


def test_mlflow_takes_every_name() -> None:
    validation = pytest.importorskip("mlflow.utils.validation")
    for name in ODD:
        made = _valid_name(name)
        validation._validate_metric_name(made)
        validation._validate_param_name(made)
        assert made and len(made) <= validation.MAX_ENTITY_KEY_LENGTH == 250


def test_names_that_are_well_stay_and_others_stay_apart() -> None:
    for name in ("loss", "val/acc", "layer.0/w", "x" * 250, "a b:c-d"):
        assert _valid_name(name) == name
    assert [_valid_name(name) for name in ODD[:5]] == ["grad/norm", "loss", "loss", "x", "layer.0/__/w"]
    assert len({_valid_name("x" * 260 + end) for end in "abc"}) == 3


def test_names_that_become_the_same_stay_apart_also_in_the_next_process() -> None:
    names = UniqueNames()
    valid = [names.valid(name) for name in ("a//b", "a/b", "a/b/", "a//b")]
    assert valid[0] == valid[3] == "a/b" and len(set(valid)) == 3
    continued = UniqueNames(names.originals)
    assert [continued.valid(name) for name in ("a/b/", "a/b", "a//b")] == [valid[2], valid[1], valid[0]]


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("http://ada:hunter2@host:5000/x", "http://host:5000/x"),
        ("http://ada:hunt@r2@host", "http://host"),
        ("http://token@host", "http://host"),
        ("postgresql://ada:hun/ter2@host/db", "postgresql://host/db"),
        ("http://host:5000/me@lab", "http://host:5000/me@lab"),
        ("http://host/me@lab", "http://host/me@lab"),
        ("sqlite:////data/me@lab/ml.db", "sqlite:////data/me@lab/ml.db"),
        ("databricks", "databricks"),
    ],
)
def test_an_address_is_shown_without_its_login_only(uri: str, shown: str) -> None:
    assert without_login(uri) == shown
