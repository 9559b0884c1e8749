"""The choice of a profile to launch from: the list, its filter, files by their path, and the very
file of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gputui.profiles.init.command_profile import command_profile
from gputui.profiles.profile_file import ProfileEntry
from gputui.profiles.resolve import GpuChoice, resolve
from gputui.runs.submission import SPEC_FILE, write_spec
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.pages.launch import typed
from gputui.ui.tui.pages.launch.form import GPUS, Form
from gputui.ui.tui.pages.launch.page import ChooseProfileScreen, LaunchScreen
from gputui.ui.tui.pages.overview.page import OverviewScreen
from tests.homes import Home
from tests.stories import overnight
from tests.tables import table
from tests.ui.tui.conftest import MakeApp
from tests.ui.tui.screens import commands_of, form_of, overview, text, wait_for

COMPLETIONS = [
    ("tr", "train", ["train.py", "train_b.py"]), ("python train.", "python train.py", ["train.py"]),
    ("sub/", "sub/deep.py", ["deep.py"]), ("s", "sub/", ["sub/"]), ("nothing", "nothing", []),
]  # fmt: skip


def launched_from(home: Home, run_id: str, path: Path) -> None:
    home.run(run_id, "succeeded", name=run_id.rpartition("-")[0], params={"steps": 42}, ended_ago=5.0)
    (spec,) = home.connection.execute("SELECT spec FROM runs WHERE run_id = ?", (run_id,)).fetchone()
    changed = json.dumps({**json.loads(spec), "profile_path": str(path)})
    home.connection.execute("UPDATE runs SET spec = ? WHERE run_id = ?", (changed, run_id))


@pytest.fixture
def mine(profile: Path, tmp_path: Path) -> Path:
    """A profile in a folder of its own, and several others by name; one has data that is not there, one is broken."""
    text = profile.read_text()
    changes = {
        "alpha": ("", ""),
        "needy": ("metrics: off", "  data_dir: data/none\nmetrics: off"),
        "wide": ("gpus: 0", "gpus: 64"),
    }
    for name, change in changes.items():
        profile.with_name(f"{name}.yaml").write_text(text.replace("name: tiny", f"name: {name}").replace(*change))
    profile.with_name("broken.yaml").write_text("script: x.py\nparms: {}\n")
    path = tmp_path / "elsewhere" / "mine.yaml"
    path.parent.mkdir()
    path.write_text(text.replace("name: tiny", "name: mine").replace("tiny.py", str(profile.with_name("tiny.py"))))
    return path


def choosing(app: GputuiApp) -> ChooseProfileScreen:
    assert isinstance(app.screen, ChooseProfileScreen)
    return app.screen


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "here" / "train.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text("print(1)\n")
    monkeypatch.chdir(path.parent)
    return path


async def test_what_was_used_last_comes_first_and_what_is_missing_is_said(
    home: Home, make_app: MakeApp, mine: Path
) -> None:
    overnight(home)
    launched_from(home, "mine-1", mine)
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("n")
        await wait_for(pilot, lambda: choosing(app).rows is not None)
        lines = text(app, "list").splitlines()
        assert "STATUS" in lines[1]
        assert "mine.yaml" in lines[2]
        assert "  used 1 h ago" in lines[2]
        by_name = {row.name: row for row in choosing(app).rows or ()}
        assert by_name["needy"].missing == "needs data_dir (data/none)"
        assert by_name["wide"].missing.startswith("needs 64 GPUs")
        assert by_name["broken"].missing.startswith("broken: ")
        assert not by_name["alpha"].missing
        assert by_name["alpha"].gpus == "CPU"
        assert [row.name for row in choosing(app).rows or ()][1] in ("alpha", "tiny")


async def test_the_list_is_filtered_and_a_path_opens_a_file(home: Home, app: GputuiApp, mine: Path) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("n", *"alp")
        await wait_for(pilot, lambda: choosing(app).rows is not None)
        assert [row.name for row in choosing(app).matches] == ["alpha"]
        await pilot.press("enter")
        await wait_for(pilot, lambda: isinstance(app.screen, LaunchScreen) and form_of(app).form.entry is not None)
        assert form_of(app).form.entry.name == "alpha"  # type: ignore[union-attr]
        await pilot.press("escape", "escape")
        assert choosing(app).edit.text == ""
        await pilot.press(*str(mine), "x", "enter")
        assert "There is no file" in text(app, "message")
        await pilot.press("backspace", "enter")
        await wait_for(pilot, lambda: isinstance(app.screen, LaunchScreen) and form_of(app).form.entry is not None)
        assert form_of(app).form.entry.path == mine  # type: ignore[union-attr]
        await wait_for(pilot, lambda: form_of(app).is_settled)
        await pilot.press("enter")
        await wait_for(pilot, lambda: bool(commands_of(home)))
        assert isinstance(app.screen, OverviewScreen)


async def test_a_copy_comes_from_its_very_file_and_from_no_other(home: Home, make_app: MakeApp, mine: Path) -> None:
    overnight(home)
    launched_from(home, "mine-1", mine)
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        overview(app).select_run("mine-1")
        await pilot.press("r", "c")
        await wait_for(pilot, lambda: isinstance(app.screen, LaunchScreen) and form_of(app).form.entry is not None)
        assert form_of(app).form.entry.path == mine  # type: ignore[union-attr]
        assert form_of(app).form.text("steps") == "42"
        mine.unlink()
        await pilot.press("escape", "r", "c")
        await wait_for(pilot, lambda: isinstance(app.screen, OverviewScreen) and "gone" in text(app, "message"))
        assert str(mine) in text(app, "message")
        assert commands_of(home) == []


@table(("text", "expected", "names"), COMPLETIONS)
def test_the_last_word_is_completed_as_a_path(tmp_path: Path, text: str, expected: str, names: list[str]) -> None:
    for name in ("train.py", "train_b.py", "sub/deep.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert typed.complete(text, tmp_path) == (expected, names)


async def test_a_command_is_typed_in_place_of_a_profile(app: GputuiApp, script: Path) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("n", *"tr", "tab")
        await wait_for(pilot, lambda: choosing(app).rows is not None)
        assert choosing(app).edit.text == "train.py"
        await pilot.press("space", *"--lr 0.1", "enter")
        await wait_for(pilot, lambda: isinstance(app.screen, LaunchScreen) and form_of(app).form.entry is not None)
        assert form_of(app).form.text("lr") == "0.1"
        await wait_for(pilot, lambda: form_of(app).is_settled)
        plan = form_of(app).plan
        assert plan is not None
        assert plan.spec is not None
        assert plan.spec.typed == ("train.py", "--lr", "0.1")
        await pilot.press("escape", "ctrl+u", *"gone.py x", "enter")
        assert isinstance(app.screen, ChooseProfileScreen)
        assert "gone.py" in text(app, "message")


async def test_the_profiles_of_the_current_folder_come_first_by_their_names(
    home: Home, make_app: MakeApp, mine: Path, script: Path
) -> None:
    overnight(home)
    launched_from(home, "mine-1", mine)
    for name, content in {"train": "script: train.py\n", "alpha": "script: train.py\n", "data": "rows: 3\n"}.items():
        (script.parent / f"{name}.yaml").write_text(content)
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("n")
        await wait_for(pilot, lambda: choosing(app).rows is not None)
        names = [row.name for row in choosing(app).matches]
        # A profile of the home has the name alpha.
        assert names[:2] == ["alpha.yaml", "train"]
        assert "mine.yaml" in names[2]
        assert "data" not in names
        await pilot.press(*"trai")
        assert [row.name for row in choosing(app).matches] == ["train", "train.py"]
        await pilot.press("tab")
        assert choosing(app).edit.text == "train."
        assert "train.py train.yaml" in text(app, "message")
        assert "train.py" in text(app, "list")
        await pilot.press("backspace", "enter")
        await wait_for(pilot, lambda: isinstance(app.screen, LaunchScreen) and form_of(app).form.entry is not None)
        entry = form_of(app).form.entry
        assert entry is not None
        assert (entry.name, entry.path.name) == ("train", "train.yaml")


async def test_a_typed_path_lists_the_files_that_begin_so(app: GputuiApp, script: Path) -> None:
    for name in ("tiny.yaml", "train-big.yaml", "train.txt"):
        (script.parent / name).write_text("script: train.py\n")
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("n", *"./t")
        await wait_for(pilot, lambda: choosing(app).rows is not None)
        assert [row.name for row in choosing(app).matches] == ["tiny.yaml", "train-big.yaml", "train.py"]
        assert "tiny.yaml" in text(app, "list")
        assert "this file" not in text(app, "list")
        await pilot.press(*"yp")
        assert "No file begins so." in text(app, "list")
        await pilot.press("ctrl+u", *"./tra", "down", "enter")
        await wait_for(pilot, lambda: isinstance(app.screen, LaunchScreen) and form_of(app).form.entry is not None)
        entry = form_of(app).form.entry
        assert entry is not None
        assert entry.profile is not None
        assert entry.profile.typed == ("train.py",)
        await wait_for(pilot, lambda: form_of(app).is_settled)
        await pilot.press("escape", "ctrl+u", *"./train-big.yaml")
        assert choosing(app).chosen == script.parent / "train-big.yaml"


def test_the_form_asks_for_a_gpu_where_there_is_one(script: Path) -> None:
    profile = command_profile(["train.py"], script.parent)
    entry = ProfileEntry(profile.name, script.parent, "typed", profile, error=None)
    assert [Form.of(entry, {}, (), inventory).text(GPUS) for inventory in (None, ())] == ["1", "0"]


async def test_a_copy_of_a_command_is_typed_where_it_was(
    home: Home, make_app: MakeApp, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overnight(home)
    home.run("here-1", "succeeded", name="here", params={"lr": 0.2}, ended_ago=5.0)
    spec = resolve(command_profile(["train.py", "--lr", "0.1"], script.parent), GpuChoice(inventory=[]))
    home.workspace.run_dir("here-1").mkdir(parents=True)
    write_spec(home.workspace.run_dir("here-1") / SPEC_FILE, spec)
    monkeypatch.chdir(tmp_path)
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        overview(app).select_run("here-1")
        await pilot.press("r", "c")
        await wait_for(pilot, lambda: isinstance(app.screen, LaunchScreen) and form_of(app).form.entry is not None)
        entry = form_of(app).form.entry
        assert entry is not None
        assert entry.profile is not None
        assert (entry.profile.typed, entry.path) == (spec.typed, script.parent)
        assert form_of(app).form.text("lr") == "0.2"
