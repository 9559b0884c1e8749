"""The form for a run's labels, and where they are shown."""

from __future__ import annotations

from typing import Any

import pytest

from gputui.runs.labels import Labels, store_labels
from gputui.tui.dialogs.labels import LabelsScreen
from tests.tui.conftest import MakeApp
from tests.tui.filling import Filler
from tests.tui.test_screens import SMALL, asked, feed_of, overview, text


async def test_the_form_can_change_all_three(filler: Filler, make_app: MakeApp) -> None:
    filler.overnight()
    app = make_app()
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("d")
        assert isinstance(app.screen, LabelsScreen)
        await pilot.press(*"base old", "tab", *"try", "space", "2", "tab", "ctrl+u", "enter")
        assert isinstance(app.screen, LabelsScreen)  # without a name there is nothing to save
        await pilot.press(*"best", "enter")
        await pilot.pause()
        (found,) = asked(filler)
        assert found[0] == "label" and found[2] == {"name": "best", "add": ["base", "old"], "note": "try 2"}


async def test_the_form_leaves_alone_what_it_does_not_change(filler: Filler, make_app: MakeApp) -> None:
    """A tag that somebody added after it opened stays."""
    filler.overnight()
    store_labels(filler.connection, "vit-b16-1", Labels("vit-b16", ("base", "old"), "try 2"))
    app = make_app()
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("d", "enter")
        assert asked(filler) == []
        await pilot.press("d", "ctrl+u", *"new", "space", *"base", "enter")
        await pilot.press("d", "shift+tab", "shift+tab", "ctrl+u", "enter")
        assert [args for _, _, args in asked(filler)] == [{"add": ["new"], "remove": ["old"]}, {"note": ""}]


async def test_a_new_label_is_shown_and_filtered_also_of_a_run_that_is_over(filler: Filler, make_app: MakeApp) -> None:
    filler.overnight()
    app = make_app()
    async with app.run_test(size=SMALL) as pilot:
        ended = next(row.run for row in overview(app).shown_rows if row.run.state.is_over)
        store_labels(filler.connection, ended.run_id, Labels("lucky", ("base",), "the old seed"))
        feed_of(app).refresh()
        await pilot.pause()
        assert "lucky" in text(app, "runs") and "#base" in text(app, "runs")
        for words in ("#base", "lucky", "old"):
            await pilot.press("slash", *words, "enter")
            assert [row.run.run_id for row in overview(app).shown_rows] == [ended.run_id]
            await pilot.press("escape")


@pytest.mark.parametrize("size", [(80, 24), (200, 50)], ids=["80x24", "200x50"])
@pytest.mark.parametrize("page", ["overview", "run", "form"])
def test_labels(snap_compare: Any, filler: Filler, make_app: MakeApp, size: tuple[int, int], page: str) -> None:
    filler.overnight()
    store_labels(filler.connection, "vit-b16-1", Labels("vit-best", ("base", "sweep:3"), "warm-up 500, the old seed"))
    store_labels(filler.connection, "resnet50-2", Labels("resnet50", ("broken",), "labels column is missing"))
    keys = {"overview": (), "run": ("enter",), "form": ("enter", "d")}[page]

    async def press(pilot: Any) -> None:
        for key in keys:
            await pilot.press(key)
            await pilot.pause()

    assert snap_compare(make_app(), run_before=press, terminal_size=size)
