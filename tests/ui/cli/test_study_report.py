"""`gputui study report` from a filled store: Markdown on standard output, a page and pictures in a folder."""

from __future__ import annotations

from pathlib import Path

from gputui.core.config import Workspace
from tests.ui.cli.program import said, shape
from tests.ui.tui.filling import Filler


def test_a_report_is_printed_or_written_to_a_folder_or_json(workspace: Workspace, tmp_path: Path) -> None:
    filler = Filler(workspace)
    filler.agent()
    filler.study(state="finished", reason="its 14 trials are done")
    filler.close()
    lines = said(workspace, "study", "report").splitlines()
    assert lines[0] == "# Study lr-search-1" and "## Best trials" in lines
    assert sum(line.startswith("| ") for line in lines) > 10

    found = shape(workspace, "study", "report")
    assert found["id"] == "lr-search-1" and found["best"][0]["command"].startswith("gputui run vit --set lr=")
    assert {one["state"] for one in found["not_complete"]} == {"pruned"} and 0 < found["saved_share"] < 1
    assert {one["name"] for one in found["importances"]} == {"lr", "batch_size", "optimizer"}

    out = tmp_path / "out"
    said(workspace, "study", "report", "lr-search", "--out", str(out))
    names = {path.name for path in out.iterdir()}
    assert {"report.md", "report.html", "values.svg", "courses.svg", "over-lr.svg"} <= names
    assert (out / "report.html").read_text().count("<svg") == sum(name.endswith(".svg") for name in names)
