"""`gputui report` from a filled store to its files, and what hostile names can do there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gputui.cli.main import command
from gputui.config import Workspace
from tests.texts import mentions
from tests.tui.filling import NOW, Filler, uuid

HOSTILE = '<script>alert("x")</script>\x1b[2J<img src=//evil/x onerror=1>'
VOID = {"meta", "img", "br", "polyline", "polygon", "rect"}
DOCS = Path(__file__).parents[2] / "docs" / "reports.md"


class Page(HTMLParser):
    """Every tag is closed in its order; what is told and what is drawn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture
def workspace_with_runs(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    monkeypatch.setattr("gputui.cli.report.time.time", lambda: NOW)
    filler = Filler(workspace)
    filler.agent()
    filler.gpus(2)
    for index, percents in ((0, (90, 98)), (1, (0, 100))):
        for place, percent in enumerate(percents):
            filler.sample(index, at=NOW - 1000 + place, utilization=percent, power=500.0 + percent)
    for number, name in enumerate(("net-1", "net-2")):
        gpus = tuple(range(number + 1))
        filler.run(name, "succeeded", name="net", gpus=gpus, params={"note": HOSTILE, "lr": 0.1}, ended_ago=100.0)
        filler.attempt(name, 1, "succeeded", gpus=gpus, ended_ago=100.0, last_step=3)
        filler.metrics(name, 1, [
            {
                "step": step, "time": NOW - 900 + step, "rank": 0, "epoch": step // 2, "loss": 4.0 - step, "lr": 0.1,
                "lr_expected": 0.1, "grad_norm": 1.0, "step_time": 0.5, "data_time": 0.05, "comm_time": 0.1,
                "samples_per_s": 100.0 + 50 * number, HOSTILE: 1.0, f"val/{HOSTILE}": 2.0,
            }
            for step in range(4)
        ])  # fmt: skip
    filler.connection.execute(
        "INSERT INTO attempt_energy VALUES ('net-1', 1, ?, ?, NULL, 7.2e6, 1)", (uuid(0), NOW - 100)
    )
    filler.connection.commit()
    yield workspace
    filler.close()


def invoke(workspace: Workspace, *words: str) -> Result:
    return CliRunner().invoke(command, ["--home", str(workspace.state.parent), "report", *words])


def documented(file: str) -> set[str]:
    """The fields that the page about reports names under a file's heading."""
    section = DOCS.read_text().split(f"### `{file}.json`")[1].split("\n### ")[0].split("\n## ")[0]
    heads = " ".join(line.split(":")[0] for line in section.splitlines() if line.startswith("- "))
    return set(re.findall(r"`(\w+)`", heads))


def fields(value: Any) -> set[str]:
    """Every key of a shape, but for those that are names of metrics."""
    if isinstance(value, list):
        return set().union(*map(fields, value)) if value else set()
    if isinstance(value, dict):
        inner = {key: one for key, one in value.items() if key != "best"}
        return set(value).union(*map(fields, inner.values()))
    return set()


def test_files_of_two_runs(workspace_with_runs: Workspace, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    result = invoke(workspace_with_runs, "net-1", "net-2", "--out", str(out), "--price-per-kwh", "0.3")
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in out.iterdir()) == [
        "cost_analysis.json", "performance_summary.json", "report.html", "scalability_report.json",
    ]  # fmt: skip
    shapes = {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}
    for name, shape in shapes.items():
        assert fields(shape) == documented(name), name
    first, second = shapes["performance_summary"]["runs"]
    assert first["gpu_utilization_percent"]["mean"] == 94.0 and second["gpu_utilization_percent"]["mean"] == 72.0
    assert first["data_wait_share"] == 0.1 and first["best"]["loss"] == {"value": 1.0, "step": 3, "better": "less"}
    assert {gate["gate"]: gate["outcome"] for gate in second["gates"]} == {
        "loss_rise": "pass", "gradients": "pass", "learning_rate": "pass", "validation_gap": "skip",
        "gpu_utilization": "fail", "parallel_efficiency": "fail",
    }  # fmt: skip
    [one, two] = shapes["cost_analysis"]["runs"]
    assert (one["energy_kwh"], one["price"], one["is_partial"]) == (2.0, 0.6, False)
    assert (two["energy_kwh"], two["price"], two["is_partial"], two["idle_share"]) == (None, None, True, 0.25)
    [group] = shapes["scalability_report"]["groups"]
    assert [(run["run_id"], run["speed_up"], run["efficiency"]) for run in group["runs"]] == [
        ("net-1", 1.0, 1.0), ("net-2", 1.5, 0.75),
    ]  # fmt: skip


def test_the_page_needs_nothing_else_and_hostile_names_are_harmless(
    workspace_with_runs: Workspace, tmp_path: Path
) -> None:
    assert invoke(workspace_with_runs, "net-1", "net-2", "--out", str(tmp_path)).exit_code == 0
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    assert page.tags.isdisjoint({"script", "img", "link", "iframe", "object", "a", "base", "form"})
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "href")]
    assert page.tags >= {"svg", "polyline", "table"}
    legends = re.findall(r"<text[^>]*>(net-\d) [^<]*</text>", text)
    assert legends == ["net-1", "net-2"], "the losses of both, over each other"
    assert "\x1b" not in text and any("<script>alert" in told for told in page.text)


def test_gates_decide_the_exit_code(workspace_with_runs: Workspace) -> None:
    assert invoke(workspace_with_runs, "net-2", "--json").exit_code == 0
    failed = invoke(workspace_with_runs, "net-2", "--json", "--gates")
    assert failed.exit_code == 1 and set(json.loads(failed.stdout)) == {
        "performance_summary", "cost_analysis", "scalability_report",
    }  # fmt: skip
    words = ("--gate", "gpu_utilization=70", "--gate", "parallel_efficiency=70")
    assert invoke(workspace_with_runs, "net-2", "--json", "--gates", *words).exit_code == 0


@pytest.mark.parametrize("since", ["24h", "1h30m", "3 days ago", "-2h", "2026-11-20"])
def test_since(workspace_with_runs: Workspace, since: str) -> None:
    found = json.loads(invoke(workspace_with_runs, "--since", since, "--json").stdout)
    assert [run["run_id"] for run in found["cost_analysis"]["runs"]] == ["net-1", "net-2"]


def test_of_many_runs_the_newest_have_pictures(
    workspace_with_runs: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("facts", "page"):
        monkeypatch.setattr(f"gputui.reports.summary.{module}.MAX_PICTURED", 1)
    assert invoke(workspace_with_runs, "net-1", "net-2", "--out", str(tmp_path)).exit_code == 0
    text = (tmp_path / "report.html").read_text()
    first, second = text.index("<h2>net-1"), text.index("<h2>net-2")
    assert "<svg" not in text[first:second] and "<svg" in text[second:]
    assert mentions(text, "newest 1 runs")


def test_nothing_was_active(workspace_with_runs: Workspace) -> None:
    nothing = invoke(workspace_with_runs, "--since", "10s", "--json")
    assert nothing.exit_code == 3 and "no run was active" in nothing.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give run names or --since"),
        (("net-1", "--since", "1h"), "give run names or --since"),
        (("--since", "soon"), "--since"),
        (("net-1", "--gate", "gpu_utilisation=3"), "did you mean gpu_utilization?"),
        (("net-1", "--gate", "gpu_utilization=much"), "gpu_utilization=85"),
    ],
)
def test_mistakes_are_named(workspace_with_runs: Workspace, words: tuple[str, ...], said: str) -> None:
    result = invoke(workspace_with_runs, *words)
    assert result.exit_code == 2 and said in result.stderr and result.stderr.count("\n") == 1


def test_a_folder_that_cannot_be_written_leaves_nothing(workspace_with_runs: Workspace, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "report.html").mkdir(parents=True)
    result = invoke(workspace_with_runs, "net-1", "--out", str(out))
    assert result.exit_code == 3 and "--out" in result.stderr
    assert [path.name for path in out.iterdir()] == ["report.html"]
