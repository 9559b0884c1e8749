"""The launch form's newer parts: GPUs from a table, another run like an earlier one, a place in the queue."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.store.runs import find_run, read_runs
from gputui.tui.app import GputuiApp
from gputui.tui.dialogs.pick_gpus import PickGpusScreen
from gputui.tui.dialogs.sheet import SheetScreen
from gputui.tui.pages.launch.form import GPUS, MORE, NAME, PLACE, PRIORITY
from gputui.tui.pages.launch.page import LaunchScreen
from gputui.tui.pages.launch.plan import first_choice, last_params, read_profiles
from tests.texts import mentions
from tests.tui.conftest import MakeApp
from tests.tui.filling import Filler
from tests.tui.test_screens import asked, feed_of, form_of, open_form, overview, profile, text, until  # noqa: F401 - a fixture


@pytest.fixture
def app(filler: Filler, make_app: MakeApp) -> GputuiApp:
    filler.overnight()
    filler.run("tiny-1", "succeeded", name="tiny", params={"steps": 42, "lr": 0.5, "gone": 3}, ended_ago=5.0)
    return make_app()


def test_the_form_begins_where_it_is_of_use(filler: Filler, profile: Path) -> None:  # noqa: F811
    filler.run("tiny-1", "succeeded")
    run = find_run(filler.connection, "tiny-1")
    for name, gpus in (("alpha", 8), ("beta", 0), ("gamma", 0)):
        text_of_it = profile.read_text().replace("name: tiny", f"name: {name}").replace("gpus: 0", f"gpus: {gpus}")
        profile.with_name(f"{name}.yaml").write_text(text_of_it)
    entries = read_profiles(filler.workspace, profile.parent.parent)
    named = [entry.name for entry in entries]

    def begins(*profiles: str, gpu_count: int = 0) -> str:
        runs = [replace(run, profile=name, sequence=number) for number, name in enumerate(profiles)]
        return named[first_choice(entries, runs, gpu_count)]

    assert named[:3] == ["alpha", "beta", "gamma"]
    assert begins() == "beta" and begins(gpu_count=8) == "alpha"
    assert begins("alpha", "gamma", "gone") == "gamma"


async def test_gpus_are_chosen_from_a_table(app: GputuiApp, filler: Filler, profile: Path) -> None:  # noqa: F811
    async with app.run_test(size=(120, 36)) as pilot:
        await open_form(pilot, app)
        await until(pilot, lambda: form_of(app).plan is not None)
        await pilot.press("ctrl+g")
        assert isinstance(app.screen, PickGpusScreen)
        shown = text(app, "sheet")
        assert "recommended" in shown and "gpt2-124m-1" in shown and "1 chosen" in shown
        free = [choice.index for choice in app.screen.choices() if choice.is_recommended]
        await pilot.press("down", "space")
        assert "2 chosen" in text(app, "sheet")
        await pilot.press("enter")
        assert form_of(app).form.text(GPUS) == ",".join(map(str, sorted({1, *free})))
        await pilot.press("ctrl+g", "escape")
        assert form_of(app).form.text(GPUS) == ",".join(map(str, sorted({1, *free})))


async def test_a_run_like_an_earlier_one(app: GputuiApp, filler: Filler, profile: Path) -> None:  # noqa: F811
    async with app.run_test(size=(120, 36)) as pilot:
        overview(app).select_run("tiny-1")
        await pilot.press("N")
        await until(pilot, lambda: isinstance(app.screen, LaunchScreen) and form_of(app).form.entry is not None)
        assert form_of(app).form.text("steps") == "42"
        assert "was 10" in text(app, "launch")
        await pilot.press("pagedown", "pageup")
        assert form_of(app).form.text("steps") == "10"
        assert "last run 42" in text(app, "launch")
        await pilot.press("ctrl+r")
        assert form_of(app).form.text("steps") == "42"


def test_the_values_of_a_trial_are_not_those_of_the_last_run(filler: Filler) -> None:
    filler.overnight()
    filler.study()
    runs = read_runs(filler.connection)
    own = {run.profile for run in runs if run.study_id is None}
    assert {run.profile for run in runs} - own and set(last_params(runs)) == own


async def test_a_secret_is_seen_by_nobody_and_comes_from_the_profile(
    app: GputuiApp,
    filler: Filler,
    profile: Path,  # noqa: F811
) -> None:
    profile.write_text(profile.read_text().replace("  lr: 0.5", "  lr: 0.5\n  hub_token: of-the-profile"))
    filler.run("tiny-2", "succeeded", name="tiny", params={"hub_token": "[redacted]", "lr": 0.5}, ended_ago=1.0)
    async with app.run_test(size=(120, 36)) as pilot:
        await open_form(pilot, app)
        await until(pilot, lambda: form_of(app).form.entry is not None)
        await until(pilot, lambda: "hub_token" in form_of(app).form.edits)
        await pilot.press("ctrl+r")
        assert form_of(app).form.text("hub_token") == "of-the-profile", "what was redacted is no value"
        assert "of-the-profile" not in text(app, "launch") and "••••" in text(app, "launch")
        while (field := form_of(app).form.current) is None or field.key != "hub_token":
            await pilot.press("down")
        assert "of-the-profile" not in text(app, "launch")
        await pilot.press(*"typed")
        assert "typed" in text(app, "launch") and "was ••••" in text(app, "launch")
        await pilot.press("down")
        assert "typed" not in text(app, "launch")


async def test_a_place_in_the_queue(app: GputuiApp, filler: Filler, profile: Path) -> None:  # noqa: F811
    async with app.run_test(size=(120, 36)) as pilot:
        await open_form(pilot, app)
        await until(pilot, lambda: form_of(app).form.entry is not None)
        await pilot.press("up", *"many")
        assert PRIORITY in form_of(app).form.problems
        await pilot.press("ctrl+u", *"-7")
        assert not form_of(app).form.problems
        await pilot.press("enter")
        await until(pilot, lambda: bool(asked(filler)))
        [(_, _, args)] = asked(filler)
        spec = json.loads((app.workspace.state / "inbox" / f"{args['ticket']}.json").read_text())
        assert spec["priority"] == -7


async def test_a_gpu_in_quarantine_or_with_memory_of_somebody_unseen_is_not_free(
    filler: Filler,
    make_app: MakeApp,
    profile: Path,  # noqa: F811
) -> None:
    filler.agent()
    filler.gpus(4)
    for index, memory in enumerate((0.4, 60.0, 60.0, 0.4)):
        filler.sample(index, memory_gib=memory)
    filler.quarantine(3, "it fell off the bus twice")
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await open_form(pilot, app)
        await until(pilot, lambda: form_of(app).plan is not None)
        assert "free 0 with 80 GiB or more · 1 2 no visible process · 3 in quarantine" in text(app, "launch")


async def test_help_that_does_not_fit_has_a_line(app: GputuiApp, filler: Filler, profile: Path) -> None:  # noqa: F811
    async with app.run_test(size=(80, 24)) as pilot:
        await open_form(pilot, app)
        await until(pilot, lambda: form_of(app).plan is not None)
        assert mentions(text(app, "launch"), "GPUs: how many", "(0,1)", "all", "^g")
        await pilot.press("down", "down")
        assert "steps: how many steps" in text(app, "launch")


@pytest.fixture
def targets(filler: Filler) -> None:
    """Two targets of the home; the second answers nobody."""
    lab = {"kind": "slurm", "partition": "gpu", "time": "4h"}
    gone = {"kind": "ray", "address": "http://127.0.0.1:9"}
    filler.workspace.targets.write_text(json.dumps({"lab": lab, "hub": gone}))


def sheet(app: GputuiApp) -> str:
    """What the sheet on top shows; nothing where none is."""
    if not isinstance(app.screen, SheetScreen):
        return ""
    return "\n".join("".join(part for part, _ in line) for line in app.screen.lines(200))


async def test_a_target_is_chosen_in_the_form_and_its_script_is_shown(
    app: GputuiApp,
    filler: Filler,
    profile: Path,  # noqa: F811
    targets: None,
) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        await open_form(pilot, app)
        await until(pilot, lambda: form_of(app).plan is not None)
        form = form_of(app)
        assert form.form.fields[1].key == PLACE and "hub, lab" in form.form.fields[1].hint
        await pilot.press("down", *"lap")
        await until(pilot, lambda: form.form.problems.keys() == {PLACE})
        await pilot.press("backspace", "b")
        await until(pilot, lambda: form.is_settled and form.plan is not None and form.plan.spec is not None)
        assert form.plan is not None and form.plan.spec is not None and form.plan.spec.target is not None
        assert form.plan.spec.target["name"] == "lab" and "#SBATCH --partition=gpu" in form.plan.description
        await pilot.press("ctrl+d")
        await until(pilot, lambda: "#SBATCH --time=240" in sheet(app))
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is form)
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is overview(app))
    assert json.loads(next((filler.workspace.state / "inbox").glob("*.json")).read_text())["target"]["name"] == "lab"


async def test_a_target_is_asked_without_the_form_s_waiting(
    app: GputuiApp,
    profile: Path,  # noqa: F811
    targets: None,
) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        await open_form(pilot, app)
        await until(pilot, lambda: form_of(app).plan is not None)
        await pilot.press("down", *"hub", "ctrl+t")
        await until(pilot, lambda: "✗ connection" in sheet(app))
        assert "127.0.0.1:9" in sheet(app)


async def test_without_targets_the_form_asks_for_none(app: GputuiApp, profile: Path) -> None:  # noqa: F811
    async with app.run_test(size=(120, 36)) as pilot:
        await open_form(pilot, app)
        await until(pilot, lambda: form_of(app).plan is not None)
        assert PLACE not in [item.key for item in form_of(app).form.fields]


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
def long_profile(profile: Path) -> Path:  # noqa: F811
    path = profile.with_name("long.yaml")
    path.write_text(LONG.format(python=sys.executable))
    profile.unlink()
    return path


async def test_few_people_change_what_is_folded(app: GputuiApp, long_profile: Path) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        await open_form(pilot, app)
        await until(pilot, lambda: form_of(app).form.entry is not None)
        form = form_of(app).form
        assert [form.fields[number].key for number in form.shown] == [
            GPUS, NAME, "data_dir", "precision", "steps", MORE
        ]  # fmt: skip
        assert form.folded == {"grad_clip", "warmup_steps", "timeout_seconds", "augment", "dropout", PRIORITY}
        await pilot.press("up", *"typed")
        assert form_of(app).form.current == form.fields[form.shown[-1]] and form_of(app).form.edits == form.edits
        await pilot.press("right", "up", "up")
        assert form_of(app).form.is_open and form_of(app).form.current.key == "precision"  # type: ignore[union-attr]
        shown = text(app, "launch")
        assert "DATA AND MODEL" in shown and "TRAINING" in shown
        (line,) = [line for line in shown.splitlines() if "timeout_seconds" in line]
        assert line.split()[:3] == ["timeout_seconds", "60", "s"]
        await pilot.press("down", "down", "down", *"0.5", "up", "left")
        folded = form_of(app).form
        assert not folded.is_open and folded.overrides() == {"grad_clip": "0.5"}
        # What was changed stays in sight.
        assert [folded.fields[number].key for number in folded.shown][-2:] == [MORE, "grad_clip"]


async def test_choices_are_turned_through(app: GputuiApp, long_profile: Path) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        await open_form(pilot, app)
        await until(pilot, lambda: form_of(app).form.entry is not None)
        await pilot.press("down", "down", "down", "right")
        assert form_of(app).form.overrides() == {"precision": "fp16"}
        await pilot.press("right", "right", "right")
        assert form_of(app).form.overrides() == {"precision": "fp16"}
        await pilot.press("left")
        assert form_of(app).form.overrides() == {}
        await pilot.press(*"int8")
        assert "precision" in form_of(app).form.problems
        await pilot.press("right")
        assert not form_of(app).form.problems and form_of(app).form.text("precision") == "fp32"


async def test_an_earlier_runs_value_is_not_folded(app: GputuiApp, filler: Filler, long_profile: Path) -> None:
    filler.run("long-1", "succeeded", name="long", params={"dropout": 0.5, "grad_clip": 1.0}, ended_ago=1.0)
    async with app.run_test(size=(120, 36)) as pilot:
        feed_of(app).refresh()
        await open_form(pilot, app)
        await until(pilot, lambda: form_of(app).form.entry is not None)
        form = form_of(app).form
        assert "dropout" in {form.fields[number].key for number in form.shown}
        assert "grad_clip" in form.folded


@pytest.mark.parametrize("size", [(80, 24), (200, 50)], ids=["80x24", "200x50"])
@pytest.mark.parametrize("is_open", [False, True], ids=["folded", "open"])
def test_the_form(snap_compare: Any, app: GputuiApp, long_profile: Path, size: tuple[int, int], is_open: bool) -> None:
    async def press(pilot: Any) -> None:
        await open_form(pilot, app)
        await until(pilot, lambda: form_of(app).is_settled and form_of(app).form.entry is not None)
        await pilot.press(*(("up", "right", "down", "down") if is_open else ("down", "down", "down")))
        form_of(app).plan = None  # paths of this machine
        form_of(app).paint()

    assert snap_compare(app, run_before=press, terminal_size=size)
