"""`gputui metrics`: plots and files show what the screen shows."""

from __future__ import annotations

import csv
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.homes import Home
from tests.stories import overnight
from tests.ui.cli.program import output_of

RUN = "vit-b16-1"


@pytest.fixture
def home(home: Home) -> Home:
    overnight(home)
    return home


def test_a_plot(home: Home) -> None:
    for options in (["loss", "lr"], ["--axis", "time"], ["--axis", "trained", "--smoothing", "0.9", "loss"]):
        plot = output_of(home.workspace, "metrics", RUN, "--plot", *options)
        assert RUN in plot
        assert sum("⠀" < char <= "⣿" for char in plot) > 20


def test_files(home: Home, tmp_path: Path) -> None:
    for ending in ("csv", "svg"):
        assert "wrote" in output_of(
            home.workspace, "metrics", RUN, "loss", "--export", str(tmp_path / f"loss.{ending}")
        )
    rows = list(csv.DictReader((tmp_path / "loss.csv").open()))
    assert {row["name"] for row in rows} >= {"loss"}
    assert all(float(row["low"]) > 0 for row in rows)
    columns = {
        element.text for element in ElementTree.parse(tmp_path / "loss.svg").iter() if element.tag.endswith("text")
    }
    assert RUN in columns
    assert "↻1" in columns
