"""Names that MLflow would refuse, as its own validator judges them, and how its address is shown."""

from __future__ import annotations

import pytest

from gputui.reports.export.mlflow_sink import valid_name, without_login

ODD = (
    "grad//norm", "/loss", "loss/", "./x", "layer.0/../w", "../x", "..", ".", "", "/", "...x", "a/./b", "//", "a/..",
    "rank1//x", "val/acc,uracy", "x" * 251, "é" * 300, "a/" * 300, "." * 400, "\ud800", "loss\n",
)  # fmt: skip


@pytest.mark.long
def test_mlflow_takes_every_name() -> None:
    validation = pytest.importorskip("mlflow.utils.validation")
    for name in ODD:
        made = valid_name(name)
        validation._validate_metric_name(made)
        validation._validate_param_name(made)
        assert made and len(made) <= validation.MAX_ENTITY_KEY_LENGTH == 250


def test_an_address_is_shown_without_its_login_only() -> None:
    shown = {
        "http://ada:hunter2@host:5000/x": "http://host:5000/x",
        "http://ada:hunt@r2@host": "http://host",
        "http://token@host": "http://host",
        "postgresql://ada:hun/ter2@host/db": "postgresql://host/db",
        "http://host:5000/me@lab": "http://host:5000/me@lab",
        "sqlite:////data/me@lab/ml.db": "sqlite:////data/me@lab/ml.db",
        "databricks": "databricks",
    }
    assert {uri: without_login(uri) for uri in shown} == shown
