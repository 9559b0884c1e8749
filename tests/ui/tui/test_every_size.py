"""Every page with every cursor at sizes from 1×1 to 300×100: it can be drawn, and its lines fit into the terminal."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import get_args

import pytest
from textual.geometry import Size

from gputui.core.text import cell_width
from gputui.ui.tui.actions import Scope, actions_in
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.layout.columns import is_too_small
from gputui.ui.tui.pages.overview.page import OverviewScreen
from gputui.ui.tui.shell import Shell
from gputui.ui.tui.widgets.page import ActionScreen
from gputui.ui.tui.widgets.pane import Pane
from tests.homes import Home
from tests.stories import bad_night, overnight, search
from tests.texts import mentions
from tests.ui.tui.conftest import DRAWING_FAILED, MakeApp
from tests.ui.tui.hostile import fill
from tests.ui.tui.screens import text
from tests.ui.tui.test_every_key import go_to

WIDTHS = (1, 12, 39, 40, 41, 47, 48, 56, 59, 60, 79, 80, 99, 100, 109, 110, 119, 120, 149, 150, 159, 160, 200, 300)
HEIGHTS = (1, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 19, 20, 24, 29, 30, 31, 36, 45, 50, 80, 100)
"""Both sides of each size at which a page changes."""

ROWS = 4
"""The cursor visits so many rows of each section of a page."""


def cursors(app: GputuiApp, page: ActionScreen) -> Iterator[str]:
    """Move the cursor to rows of each section of a page; yields where it is."""
    names = {action.name for action in actions_in(page.SCOPE)}
    down = "field_next" if "field_next" in names else "down"
    section_next = next(iter(names & {"focus_next", "section_next"}), None)
    for section in range(6 if section_next else 1):
        for row in range(ROWS):
            yield f"section {section}, row {row}"
            app.perform(down)
        if section_next:
            app.perform(section_next)


def problem_of(page: ActionScreen, width: int, height: int) -> str | None:
    """What is wrong with the drawn panes."""
    panes = [pane for pane in page.query(Pane) if pane.display]
    lines = [line for pane in panes for line in pane._lines]
    widest = max((sum(cell_width(text) for text, _ in line) for line in lines), default=0)
    if widest > width:
        return f"a line of {widest} cells"
    if is_too_small(width, height):
        return None
    for pane in panes:
        if len(pane._lines) > (pane._height or 0):
            return f"{len(pane._lines)} lines in a pane of {pane._height}"
    return None


@pytest.mark.parametrize("content", ["a night", "hostile texts"])
@pytest.mark.parametrize("scope", get_args(Scope))
async def test_every_page_can_be_drawn_at_any_size(
    scope: Scope, content: str, home: Home, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content == "a night":
        overnight(home)
        search(home)
    else:
        fill(home)
    bad_night(home)
    (home.workspace.profiles / "tiny.yaml").write_text("name: tiny\nlauncher: command\nscript: x.py\ngpus: 0\n")
    choose = random.Random(f"{scope} {content}")
    app = make_app()
    async with app.run_test(size=(130, 40)) as pilot:
        page = await go_to(app, pilot, scope)
        size = Size(130, 40)
        monkeypatch.setattr(GputuiApp, "size", property(lambda _: size))
        for where in cursors(app, page):
            for width, height in choose.sample(list(product(WIDTHS, HEIGHTS)), 12):
                size = Size(width, height)
                page.paint()
                assert problem_of(page, width, height) is None, f"{where} at {width}×{height}"
            size = Size(130, 40)


async def test_a_pane_that_cannot_be_drawn_leaves_the_others(
    app: GputuiApp, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shell, "failure_line", DRAWING_FAILED)

    def broken(*_: object, **__: object) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr("gputui.ui.tui.pages.overview.page.events_panel", broken)
    async with app.run_test(size=(120, 36)) as pilot:
        assert mentions(text(app, "events"), "could not be drawn", "IndexError", "test_every_size.py")
        assert "vit-b16-1" in text(app, "runs")
        await pilot.press("down", "up")
        log = home.workspace.agent_log.read_text()
        assert log.count("could not draw events") == 1
        assert "in broken" in log


async def test_a_page_that_cannot_be_drawn_keeps_its_keys(app: GputuiApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shell, "failure_line", DRAWING_FAILED)
    async with app.run_test(size=(120, 36)) as pilot:
        whole = OverviewScreen.keep_cursor
        monkeypatch.setattr(OverviewScreen, "keep_cursor", lambda _: 1 / 0)
        await pilot.press("down")
        assert mentions(text(app, "notice"), "could not be drawn", "ZeroDivisionError")
        assert "? help" in text(app, "footer")
        monkeypatch.setattr(OverviewScreen, "keep_cursor", whole)
        await pilot.press("down")
        assert text(app, "notice") == ""
        assert "vit-b16-1" in text(app, "runs")
