"""The launch form's newer parts: GPUs from a table, another run like an earlier one, a place in the queue."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from gputui.runs.checks import CheckResult
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.dialogs.pick_gpus import PickGpusScreen
from gputui.ui.tui.dialogs.sheet import SheetScreen
from gputui.ui.tui.pages.launch.form import GPUS, TARGET
from gputui.ui.tui.pages.launch.plan import Plan
from gputui.ui.tui.pages.launch.view import check_lines
from tests.homes import Home
from tests.stories import overnight
from tests.texts import mentions
from tests.ui.tui.conftest import MakeApp
from tests.ui.tui.screens import commands_of, feed_of, form_of, open_form, screen_text, text, wait_for

LONG = """
name: long
description: Many parameters.
launcher: python
script: tiny.py
python: {python}
gpus: 0
params:
  data_dir: {{default: here, help: a folder}}
  precision: {{default: bf16, choices: [fp32, bf16, fp16], help: of the forward pass}}
  steps: {{default: 10, min: 1, max: 100, help: how many}}
  grad_clip: 1.0
  warmup_steps: 100
  timeout_seconds: 60
  augment: true
  dropout: 0.1
metrics: off
"""


@pytest.fixture
def app(home: Home, make_app: MakeApp) -> GputuiApp:
    overnight(home)
    home.run("tiny-1", "succeeded", name="tiny", params={"steps": 42, "lr": 0.5, "gone": 3}, ended_ago=5.0)
    return make_app()


@pytest.fixture
def targets(home: Home) -> None:
    """Two targets of the home; the second answers nobody."""
    lab = {"kind": "slurm", "partition": "gpu", "time": "4h"}
    gone = {"kind": "ray", "address": "http://127.0.0.1:9"}
    home.workspace.targets.write_text(json.dumps({"lab": lab, "hub": gone}))


def sheet(app: GputuiApp) -> str:
    if not isinstance(app.screen, SheetScreen):
        return ""
    return "\n".join("".join(part for part, _ in line) for line in app.screen.lines(200))


@pytest.fixture
def long_profile(profile: Path) -> Path:
    path = profile.with_name("long.yaml")
    path.write_text(LONG.format(python=sys.executable))
    profile.unlink()
    return path


async def test_gpus_are_chosen_from_a_table(app: GputuiApp, home: Home, profile: Path) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        await open_form(pilot, app)
        await wait_for(pilot, lambda: form_of(app).plan is not None)
        await pilot.press("ctrl+g")
        assert isinstance(app.screen, PickGpusScreen)
        sheet = text(app, "sheet")
        assert "recommended" in sheet
        assert "gpt2-124m-1" in sheet
        assert "1 chosen" in sheet
        free = [
            int(line.split("]")[1].split()[0]) for line in sheet.splitlines() if "]" in line and "recommended" in line
        ]
        await pilot.press("down", "space")
        assert "2 chosen" in text(app, "sheet")
        await pilot.press("enter")
        assert form_of(app).form.text(GPUS) == ",".join(map(str, sorted({1, *free})))
        await pilot.press("ctrl+g", "escape")
        assert form_of(app).form.text(GPUS) == ",".join(map(str, sorted({1, *free})))


async def test_the_form_names_the_gpus_that_the_agent_would_take(app: GputuiApp, home: Home, profile: Path) -> None:
    async def checked(*keys: str) -> str:
        await open_form(pilot, app)
        await wait_for(pilot, lambda: form_of(app).form.entry is not None)
        await pilot.press(*keys)
        await wait_for(pilot, lambda: form_of(app).is_settled and form_of(app).form.text(GPUS) == "1")
        return " ".join(text(app, "list").replace("│", "").split())

    # One that follows another run, and one on a target: neither keeps GPUs of this machine.
    for run_id, change in (("next-1", {"after": ["x-1"]}), ("far-1", {"target": {"name": "lab", "kind": "slurm"}})):
        home.run(run_id, "queued", gpus=(0, 1), attempt=0, started_ago=None)
        home.connection.execute(
            "UPDATE runs SET spec = json_patch(spec, ?) WHERE run_id = ?", (json.dumps(change), run_id)
        )
    async with app.run_test(size=(160, 48)) as pilot:
        lines = await checked("1")
        assert "✓ gpus: starts now on GPU 4" in lines
        assert "of alice" in lines
        await pilot.press("escape", "escape")
        home.run("big-1", "queued", gpus=(0, 1), started_ago=None)
        feed_of(app).refresh()
        await wait_for(pilot, lambda: "promised to big-1" in text(app, "gpus"))
        assert mentions(await checked("1"), "0 of 1 GPU free", "GPU 4 promised to big-1")


async def test_a_secret_is_seen_by_nobody_and_comes_from_the_profile(app: GputuiApp, home: Home, profile: Path) -> None:
    profile.write_text(profile.read_text().replace("  lr: 0.5", "  lr: 0.5\n  hub_token: of-the-profile"))
    home.run("tiny-2", "succeeded", name="tiny", params={"hub_token": "[redacted]", "lr": 0.5}, ended_ago=1.0)
    async with app.run_test(size=(120, 36)) as pilot:
        await open_form(pilot, app)
        await wait_for(pilot, lambda: form_of(app).form.entry is not None)
        await wait_for(pilot, lambda: form_of(app).form.text("hub_token") != "")
        await pilot.press("ctrl+r")
        assert form_of(app).form.text("hub_token") == "of-the-profile", "what was redacted is no value"
        assert "of-the-profile" not in text(app, "list")
        assert "••••" in text(app, "list")
        while (field := form_of(app).current) is None or field.key != "hub_token":
            await pilot.press("down")
        assert "of-the-profile" not in text(app, "list")
        await pilot.press(*"typed")
        assert "typed" in text(app, "list")
        assert "was ••••" in text(app, "list")
        await pilot.press("down")
        assert "typed" not in text(app, "list")


async def test_a_target_is_chosen_in_the_form_and_its_script_is_shown(
    app: GputuiApp, home: Home, profile: Path, targets: None
) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        await open_form(pilot, app)
        await wait_for(pilot, lambda: form_of(app).plan is not None)
        form = form_of(app)
        assert form.form.fields[1].key == TARGET
        assert "hub, lab" in form.form.fields[1].hint
        await pilot.press("down", *"lap")
        await wait_for(pilot, lambda: "expected hub, lab" in " ".join(form.form.problems))
        await pilot.press("backspace", "b")
        await wait_for(pilot, lambda: form.is_settled and form.plan is not None and form.plan.spec is not None)
        assert form.plan is not None
        assert form.plan.spec is not None
        assert form.plan.spec.target is not None
        assert form.plan.spec.target["name"] == "lab"
        assert "#SBATCH --partition=gpu" in form.plan.description
        await pilot.press("ctrl+d")
        await wait_for(pilot, lambda: "#SBATCH --time=240" in sheet(app))
        await pilot.press("escape")
        await wait_for(pilot, lambda: app.screen is form)
        await pilot.press("enter")
        await wait_for(pilot, lambda: bool(commands_of(home)))
    (spec,) = (home.workspace.state / "inbox").glob("*.json")
    assert json.loads(spec.read_text())["target"]["name"] == "lab"


async def test_the_form(snapshot: SnapshotAssertion, app: GputuiApp, long_profile: Path) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await open_form(pilot, app)
        await wait_for(pilot, lambda: form_of(app).is_settled and form_of(app).form.entry is not None)
        await pilot.press("up", "right", "down", "down")
        form_of(app).plan = None  # paths of this machine
        form_of(app).paint()
        await pilot.pause()
        assert screen_text(app) == snapshot


def test_problems_and_warnings_are_counted_apart() -> None:
    failed = CheckResult("data", "fail", "data/x does not exist")
    doubtful = [CheckResult(name, "warn", "is old") for name in ("driver", "python", "disk")]
    for checks, counts in (
        ([failed, *doubtful], "1 problem, 3 warnings"),
        (doubtful, "3 warnings"),
        ([], "✓ all passed"),
    ):
        heading, *_ = check_lines(Plan(checks=tuple(checks)), "", 80, 8)
        assert f" {counts} " in "".join(part for part, _ in heading)
