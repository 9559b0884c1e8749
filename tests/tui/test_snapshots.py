"""Pictures of the main states, at a small and a large size."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gputui.tui.app import GputuiApp
from tests.tui.conftest import MakeApp
from tests.tui.filling import Filler

SIZES = pytest.mark.parametrize("size", [(80, 24), (160, 48)], ids=["80x24", "160x48"])
Compare = Callable[..., bool]


@pytest.fixture
def app(filler: Filler, make_app: MakeApp) -> GputuiApp:
    filler.overnight()
    return make_app()


@SIZES
def test_the_overview(snap_compare: Compare, app: GputuiApp, size: tuple[int, int]) -> None:
    assert snap_compare(app, terminal_size=size)


@SIZES
def test_all_gpus_together(snap_compare: Compare, app: GputuiApp, size: tuple[int, int]) -> None:
    assert snap_compare(app, press=["a"], terminal_size=size)


@SIZES
def test_no_driver(snap_compare: Compare, filler: Filler, make_app: MakeApp, size: tuple[int, int]) -> None:
    filler.agent(problem="No NVIDIA driver found (libnvidia-ml.so.1 is missing).")
    filler.host()
    assert snap_compare(make_app(), terminal_size=size)


def test_stopping_asks_first(snap_compare: Compare, app: GputuiApp) -> None:
    assert snap_compare(app, press=["s"], terminal_size=(80, 24))


def test_the_help(snap_compare: Compare, app: GputuiApp) -> None:
    assert snap_compare(app, press=["question_mark"], terminal_size=(80, 24))
