"""`gputui metrics`: plots and files show what the screen shows."""

from __future__ import annotations

import csv
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from gputui.core.config import locate
from gputui.ui.cli.main import command
from tests.ui.tui.filling import Filler


@pytest.fixture
def filler(tmp_path: Path) -> Iterator[Filler]:
    made = Filler(locate(tmp_path / "home"))
    made.overnight()
    yield made
    made.close()


def metrics(filler: Filler, *words: str) -> Result:
    home = str(filler.workspace.state.parent)
    return CliRunner().invoke(command, ["--home", home, "metrics", "vit-b16-1", *words])


def test_a_plot(filler: Filler) -> None:
    for words in (["loss", "lr"], ["--axis", "time"], ["--axis", "trained", "--smoothing", "0.9", "loss"]):
        done = metrics(filler, "--plot", *words)
        assert done.exit_code == 0, done.output
        assert "vit-b16-1" in done.output and sum("⠀" < char <= "⣿" for char in done.output) > 20


def test_files(filler: Filler, tmp_path: Path) -> None:
    for ending in ("csv", "svg"):
        done = metrics(filler, "loss", "--export", str(tmp_path / f"loss.{ending}"))
        assert done.exit_code == 0 and "wrote" in done.output
    rows = list(csv.DictReader((tmp_path / "loss.csv").open()))
    assert {row["name"] for row in rows} >= {"loss"} and all(float(row["low"]) > 0 for row in rows)
    words = {each.text for each in ElementTree.parse(tmp_path / "loss.svg").iter() if each.tag.endswith("text")}
    assert "vit-b16-1" in words and "↻1" in words


def test_files_that_cannot_be_made(filler: Filler, tmp_path: Path) -> None:
    unknown = metrics(filler, "--export", str(tmp_path / "loss.pdf"))
    assert unknown.exit_code == 2 and ".csv, .svg or .png" in unknown.output
    nowhere = metrics(filler, "--export", str(tmp_path / "no" / "loss.svg"))
    assert nowhere.exit_code == 3 and os.strerror(errno.ENOENT) in nowhere.output
