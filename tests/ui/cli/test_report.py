"""`gputui report` from a filled store to its files, and what hostile names can do there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.core.config import Workspace
from gputui.store.rows import insert
from tests.homes import NOW, Home, uuid
from tests.stories import overnight
from tests.texts import mentions
from tests.ui.cli.program import call

HOSTILE = '<script>alert("x")</script>\x1b[2J<img src=//evil/x onerror=1>'


@pytest.fixture
def workspace_with_runs(home: Home, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    monkeypatch.setattr("gputui.ui.cli.report.time.time", lambda: NOW)
    home.agent()
    home.gpus(2)
    for index, percents in ((0, (90, 98)), (1, (0, 100))):
        for place, percent in enumerate(percents):
            home.sample(index, at=NOW - 1000 + place, utilization=percent, power=500.0 + percent)
    for number, name in enumerate(("net-1", "net-2")):
        gpus = tuple(range(number + 1))
        home.run(name, "succeeded", name="net", gpus=gpus, params={"note": HOSTILE, "lr": 0.1}, ended_ago=100.0)
        home.attempt(name, 1, "succeeded", gpus=gpus, ended_ago=100.0, last_step=3)
        home.metrics(name, 1, [
            {
                "step": step, "time": NOW - 900 + step, "rank": 0, "epoch": step // 2, "loss": 4.0 - step, "lr": 0.1,
                "lr_expected": 0.1, "grad_norm": 1.0, "step_time": 0.5, "data_time": 0.05, "comm_time": 0.1,
                "samples_per_s": 100.0 + 50 * number, HOSTILE: 1.0, f"val/{HOSTILE}": 2.0,
            }
            for step in range(4)
        ])  # fmt: skip
    insert(
        home.connection, "attempt_energy", run_id="net-1", attempt=1, gpu_uuid=uuid(0), until=NOW - 100,
        energy_joules=7.2e6, settled=1,
    )  # fmt: skip
    home.connection.commit()
    yield workspace


def test_files_of_two_runs(workspace_with_runs: Workspace, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    options = ("--out", str(out), "--price-per-kwh", "0.3", "--gates")
    assert call(workspace_with_runs, "report", "net-1", "net-2", *options).code == 1
    assert sorted(path.name for path in out.iterdir()) == [
        "cost_analysis.json", "performance_summary.json", "report.html", "scalability_report.json",
    ]  # fmt: skip
    shapes = {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}
    first, second = shapes["performance_summary"]["runs"]
    assert first["gpu_utilization_percent"]["mean"] == 94.0
    assert second["gpu_utilization_percent"]["mean"] == 72.0
    assert first["data_wait_share"] == 0.1
    assert first["best"]["loss"] == {"value": 1.0, "step": 3, "better": "less"}
    assert {gate["gate"]: gate["outcome"] for gate in second["gates"]} == {
        "loss_rise": "pass", "gradients": "pass", "learning_rate": "pass", "validation_gap": "skip",
        "gpu_utilization": "fail", "parallel_efficiency": "fail",
    }  # fmt: skip
    first_cost, second_cost = shapes["cost_analysis"]["runs"]
    assert (first_cost["energy_kwh"], first_cost["price"], first_cost["is_partial"]) == (2.0, 0.6, False)
    assert (second_cost["energy_kwh"], second_cost["price"], second_cost["is_partial"], second_cost["idle_share"]) == (
        None,
        None,
        True,
        0.25,
    )
    [group] = shapes["scalability_report"]["groups"]
    assert [(run["run_id"], run["speed_up"], run["efficiency"]) for run in group["runs"]] == [
        ("net-1", 1.0, 1.0), ("net-2", 1.5, 0.75),
    ]  # fmt: skip


def test_the_page_needs_nothing_else_and_hostile_names_are_harmless(
    workspace_with_runs: Workspace, tmp_path: Path
) -> None:
    assert call(workspace_with_runs, "report", "net-1", "net-2", "--out", str(tmp_path)).code == 0
    text = (tmp_path / "report.html").read_text()
    assert re.findall(r"<(?:script|img|link|iframe|object|a|base|form)\b", text) == []
    assert re.findall(r"<[^>]*\s(?:on\w+|src|href)=", text) == []
    assert {"svg", "polyline", "table"} <= set(re.findall(r"<(\w+)", text))
    legends = re.findall(r"<text[^>]*>(net-\d) [^<]*</text>", text)
    assert legends == ["net-1", "net-2"], "the losses of both, over each other"
    assert "\x1b" not in text
    assert "&lt;script&gt;alert" in text


def test_gates_decide_the_exit_code_if_they_are_asked_for(workspace_with_runs: Workspace) -> None:
    plain = call(workspace_with_runs, "report", "net-2", "--json")
    [run] = json.loads(plain.stdout)["performance_summary"]["runs"]
    assert (plain.code, run["gates"]) == (0, [])
    failed = call(workspace_with_runs, "report", "net-2", "--json", "--gates")
    assert failed.code == 1
    assert set(json.loads(failed.stdout)) == {
        "performance_summary",
        "cost_analysis",
        "scalability_report",
    }
    options = ("--gate", "gpu_utilization=70", "--gate", "parallel_efficiency=70")
    assert call(workspace_with_runs, "report", "net-2", "--json", *options).code == 0


def test_the_verdict_and_the_story_of_each_recovery(home: Home, workspace: Workspace, tmp_path: Path) -> None:
    overnight(home)
    home.incident("resnet50-2", 1, "exception", "KeyError 'labels'", step=12, verdict="stop")
    action = {"action": "exclude_gpu", "applied": True, "changes": [], "note": "took another GPU in place of GPU 7"}
    home.connection.execute("UPDATE decisions SET actions = ? WHERE attempt = 2", (json.dumps([action]),))
    [stopped] = json.loads(call(workspace, "report", "resnet50-2", "--json").stdout)["performance_summary"]["runs"]
    [only] = stopped["recoveries"]
    assert mentions(only, "Attempt 1: stopped", "KeyError 'labels'", "step 12")
    lines = call(workspace, "report", "vit-b16-1", "--out", str(tmp_path)).stdout.splitlines()
    assert mentions(
        lines[0], "vit-b16-1 is running", "9 440", "3 attempts", "1.850", "8 870", "2 failures", "422 steps"
    )
    [run] = json.loads((tmp_path / "performance_summary.json").read_text())["runs"]
    assert run["verdict"] == lines[0]
    first, second = run["recoveries"]
    assert mentions(first, "Attempt 1 → 2: ", "512 × 1 → 384 × 2", "step_4000.pt", "4 000", "CUDA ran out of memory")
    assert mentions(second, "Attempt 2 → 3: ", "another GPU", "GPU 7", "step_8000.pt", "8 000", "because GPU 7 was")
    page = (tmp_path / "report.html").read_text()
    assert page.index(lines[0]) < page.index("512 × 1 → 384 × 2") < page.index("<svg") < page.index("<h3>Cost")
    assert "Quality gates" not in page
