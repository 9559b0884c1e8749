"""Fails when a name of Textual moved that the display layer relies on and that nobody promised to keep.

Then: read what changed in Textual, correct gputui/ui/tui/terminal/layer.py, and only then the pin in pyproject.toml.
"""

import re
from pathlib import Path

import textual
from textual.app import App

from gputui.ui.tui.terminal import layer

ROOT = Path(__file__).parents[4]


def test_the_version_is_the_one_that_was_read() -> None:
    assert textual.__version__ == "8.2.8"
    assert '"textual==8.2.8"' in (ROOT / "pyproject.toml").read_text()


def test_only_the_layer_and_the_driver_use_private_names_of_textual() -> None:
    pattern = re.compile(r"from textual[\w.]*\._|import textual\._|self\._(?:driver|batch_count|sync_available)\b")
    users = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "gputui").rglob("*.py")
        if pattern.search(path.read_text())
    }
    assert users == {"gputui/ui/tui/terminal/layer.py", "gputui/ui/tui/terminal/driver.py"}


async def test_a_key_waits_for_no_tick() -> None:
    app = layer.DisplayLayer[None]()
    async with app.run_test(size=(20, 5)):
        assert app.screen._update_timer._interval == layer.PAINT_SECONDS


async def test_the_app_has_the_names_that_are_used() -> None:
    app: App[None] = App()
    assert [name for name in layer.PRIVATE_NAMES["app"] if not hasattr(app, name)] == []
    async with app.run_test(size=(20, 5)):
        with app.batch_update():
            assert (app._running, app._closed, app._batch_count, app._sync_available) == (True, False, 1, False)
