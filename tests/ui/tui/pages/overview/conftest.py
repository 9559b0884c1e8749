"""A busy night as the overview reads it."""

from __future__ import annotations

import pytest

from gputui.ui.views.snapshot import Snapshot
from tests.homes import Home
from tests.stories import overnight
from tests.ui.tui.screens import read


@pytest.fixture
def snapshot(home: Home) -> Snapshot:
    overnight(home)
    return read(home.workspace)
