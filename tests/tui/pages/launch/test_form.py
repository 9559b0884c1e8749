"""The launch form's newer parts: GPUs from a table, another run like an earlier one, a place in the queue."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gputui.store.runs import find_run
from gputui.tui.app import GputuiApp
from gputui.tui.dialogs.pick_gpus import PickGpusScreen
from gputui.tui.pages.launch.form import GPUS, PRIORITY
from gputui.tui.pages.launch.page import LaunchScreen
from gputui.tui.pages.launch.plan import first_choice, read_profiles
from tests.tui.conftest import MakeApp
from tests.tui.filling import Filler
from tests.tui.test_screens import asked, form_of, open_form, overview, profile, text, until  # noqa: F401 - a fixture


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


async def test_memory_that_somebody_unseen_holds_is_not_free(
    filler: Filler,
    make_app: MakeApp,
    profile: Path,  # noqa: F811
) -> None:
    filler.agent()
    filler.gpus(3)
    for index, memory in enumerate((0.4, 60.0, 60.0)):
        filler.sample(index, memory_gib=memory)
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await open_form(pilot, app)
        await until(pilot, lambda: form_of(app).plan is not None)
        assert "free 0 with 80 GiB or more · 1 2 no visible process" in text(app, "launch")


async def test_help_that_does_not_fit_stands_in_the_heading(app: GputuiApp, filler: Filler, profile: Path) -> None:  # noqa: F811
    async with app.run_test(size=(80, 24)) as pilot:
        await open_form(pilot, app)
        await until(pilot, lambda: form_of(app).plan is not None)
        heading = next(line for line in text(app, "launch").splitlines() if "WHERE AND WHAT" in line)
        assert "how many, which (0,1), or all; ^g chooses from a table" in heading
        await pilot.press("down", "down", "down")
        assert "how many steps" in text(app, "launch") and "how many steps" not in heading
        heading = next(line for line in text(app, "launch").splitlines() if "WHERE AND WHAT" in line)
        assert heading.rstrip("─ ").endswith("WHAT")
