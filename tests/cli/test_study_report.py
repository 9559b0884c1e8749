"""`gputui study report` from a filled store: Markdown on standard output, a page and pictures in a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gputui.cli.main import command
from gputui.config import Workspace
from tests.tui.filling import Filler


@pytest.fixture
def studied(workspace: Workspace) -> Iterator[Workspace]:
    filler = Filler(workspace)
    filler.agent()
    filler.study(state="finished", reason="its 14 trials are done")
    filler.close()
    yield workspace


def gputui(workspace: Workspace, *words: str) -> Result:
    return CliRunner().invoke(command, ["--home", str(workspace.state.parent), *words])


def test_markdown_is_printed_in_lines(studied: Workspace) -> None:
    done = gputui(studied, "study", "report")
    lines = done.stdout.splitlines()
    assert done.exit_code == 0 and lines[0] == "# Study lr-search-1" and "## Best trials" in lines
    assert sum(line.startswith("| ") for line in lines) > 10


def test_json_has_the_best_trials_with_their_commands(studied: Workspace) -> None:
    found = json.loads(gputui(studied, "study", "report", "--json").stdout)
    assert found["id"] == "lr-search-1" and found["best"][0]["command"].startswith("gputui run vit --set lr=")
    assert {one["state"] for one in found["not_complete"]} == {"pruned"} and 0 < found["saved_share"] < 1
    assert {one["name"] for one in found["importances"]} == {"lr", "batch_size", "optimizer"}


def test_a_folder_gets_the_page_and_the_pictures(studied: Workspace, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert gputui(studied, "study", "report", "lr-search", "--out", str(out)).exit_code == 0
    names = {path.name for path in out.iterdir()}
    assert {"report.md", "report.html", "values.svg", "courses.svg", "over-lr.svg"} <= names
    assert (out / "report.html").read_text().count("<svg") == sum(name.endswith(".svg") for name in names)
