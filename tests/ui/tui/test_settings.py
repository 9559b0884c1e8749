"""Settings: what is kept, what survives, what is refused, and the sheet that changes them."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import get_args

import pytest

from gputui.core.config import Workspace
from gputui.ui.tui import settings as kept
from gputui.ui.tui.actions import Scope, actions_in
from gputui.ui.tui.actions.keymap import resolve_keys
from gputui.ui.tui.actions.keys import key_name
from gputui.ui.tui.dialogs.settings import ITEMS
from gputui.ui.tui.pages.overview.page import OverviewScreen
from gputui.ui.tui.settings import Settings
from tests.homes import Home
from tests.stories import overnight
from tests.ui.tui.conftest import still_app


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "settings.json"


def test_what_is_saved_is_read_again_and_private(path: Path) -> None:
    changes = {"theme": "dark", "pins": ["loss", "lr"], "refresh_seconds": 2, "keys": {"stop": "S"}}
    assert kept.save(path, changes) is None
    settings = Settings(theme="dark", pins=("loss", "lr"), refresh_seconds=2.0, keys={"stop": "S"})
    assert kept.load(path) == (settings, None)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [path_left.name for path_left in path.parent.iterdir()] == [path.name]
    # The settings that another view wrote survive.
    path.write_text('{"future": {"deep": [1]}, "bell": true, "theme": "light"}')
    kept.save(path, {"theme": "dark"})
    assert json.loads(path.read_text()) == {"future": {"deep": [1]}, "bell": True, "theme": "dark"}


def test_a_broken_file_is_one_sentence_and_is_kept(path: Path) -> None:
    assert kept.load(path) == (Settings(), None), "without a file there are defaults and no word"
    path.parent.mkdir()
    for text in ("{", "[]", '"x"', "\0"):
        path.write_text(text)
        settings, problem = kept.load(path)
        assert settings == Settings()
        assert problem is not None, text[:9]
        assert str(path) in problem, text[:9]
        assert "\n" not in problem, text[:9]
        said = kept.save(path, {"bell": True})
        assert said is not None, text[:9]
        assert "set aside" in said, text[:9]
        assert path.with_name("settings.json.broken").read_text() == text
        assert kept.load(path) == (Settings(bell=True), None), text[:9]


def test_values_that_do_not_fit_are_named_and_the_others_hold(path: Path) -> None:
    path.parent.mkdir()
    wrong = {"theme": "pink\x1b[31m", "refresh_seconds": 1e9, "bell": 1, "pins": "x", "keys": {"a": 1}}
    path.write_text(json.dumps({**wrong, "title": True}))
    settings, problem = kept.load(path)
    assert settings == Settings(title=True)
    assert problem is not None
    assert "\x1b" not in problem
    assert all(name in problem for name in wrong)


def test_a_failed_write_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.save(path, {"bell": True})

    def no_room(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(OSError, match="No space"):
        kept.save(path, {"bell": False})
    assert [path_left.name for path_left in path.parent.iterdir()] == [path.name]


# --- keys


def test_a_wish_holds_wherever_the_action_is() -> None:
    names = {"S": "S", "?": "question_mark", "+": "plus", "ctrl++": "ctrl+plus", "ctrl+s": "ctrl+s", "f5": "f5"}
    names |= dict.fromkeys(("", "hyperspace", "cmd+s", "SS"))
    assert {word: key_name(word) for word in names} == names
    keys = resolve_keys({"stop": "f9 ctrl+s", "run.export": "f8"})
    assert not keys.refused
    assert keys.on("overview")["stop"] == ("f9", "ctrl+s") == keys.on("run")["stop"]
    assert "export" not in keys.on("overview")
    assert keys.on("run")["export"] == ("f8",)


def test_what_cannot_be_is_refused_in_words() -> None:
    for choice, word in [
        ({"overview.stop": "q"}, "quit"),
        ({"overview.stop": "f9", "overview.fold": "f9"}, "f9"),
        ({"stopp": "f9"}, "stop"),
        ({"stop": "hyperspace"}, "no such key"),
        ({"stop": ""}, "no key"),
        ({"launch.preview": "p"}, "text"),
    ]:
        keys_in_force = resolve_keys(choice)
        assert len(keys_in_force.refused) == 1, (choice, word)
        assert word in keys_in_force.refused[0], (choice, word)
        for scope in get_args(Scope):
            keys = [
                key for action in actions_in(scope) for key in keys_in_force.on(scope).get(action.name, action.keys)
            ]
            assert len(keys) == len(set(keys)), (choice, word)


# --- on the screen


async def test_a_chosen_key_does_it_and_is_told_in_footer_and_help(home: Home, workspace: Workspace) -> None:
    overnight(home)
    app = still_app(workspace, Settings(keys={"overview.fold": "f7", "overview.stop": "q"}))
    async with app.run_test(size=(160, 36)) as pilot:
        await pilot.pause()
        assert "cannot have q" in app.screen.query_one("#message").text
        assert "f7 charts" in app.screen.query_one("#footer").text
        before = app.screen.query_one("#gpus").text
        await pilot.press("a")
        assert app.screen.query_one("#gpus").text == before
        await pilot.press("f7")
        await pilot.pause()
        assert app.screen.query_one("#gpus").text != before
        await pilot.press("question_mark")
        await pilot.pause()
        assert "f7" in app.screen.query_one("#sheet").text


async def test_the_sheet_changes_settings_with_keys_and_keeps_them(home: Home, workspace: Workspace) -> None:
    overnight(home)
    app = still_app(workspace, Settings())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("comma")
        await pilot.pause()
        assert all(item.label in app.screen.query_one("#settings").text for item in ITEMS)
        await pilot.press("right", "right", "down", "down", "left")
        await pilot.pause()
        assert app.settings.theme == "dark"
        assert app.settings.mouse == "off"
        await pilot.press("escape")
    assert app.save_settings() is None
    assert kept.load(workspace.settings)[0] == app.settings


async def test_charts_order_and_fold_begin_as_they_were_left(home: Home, workspace: Workspace) -> None:
    overnight(home)
    app = still_app(workspace, Settings())
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("a", "o", "enter", "m", "asterisk", "y")
        await pilot.pause()
        charts = app.chart_memory.usual
    assert app.save_settings() is None
    settings, problem = kept.load(workspace.settings)
    assert problem is None
    assert settings.fold
    assert settings.sort == "newest"
    assert settings.chart_smoothing
    assert settings.pins
    again = still_app(workspace, settings)
    async with again.run_test(size=(120, 36)) as pilot:
        await pilot.press("enter")
        await pilot.pause()
        assert again.chart_memory.usual.smoothing == charts.smoothing > 0
        assert again.chart_memory.usual.pins
        overview = again.screen_stack[0]
        assert isinstance(overview, OverviewScreen)
        assert overview.is_folded
        assert overview.table.order == "newest"
