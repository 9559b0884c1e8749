"""The screen without an agent, as a program: ``python -m tests.ui.tui.screen_app HOME``."""

from __future__ import annotations

import sys

from gputui.core.config import locate
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.data.feed import Feed
from gputui.ui.tui.settings import load
from tests.homes import an_hour_later

if __name__ == "__main__":
    workspace = locate(sys.argv[1])
    feed = Feed(workspace, wall=an_hour_later)
    feed.start()
    settings, _ = load(workspace.settings)
    app = GputuiApp(workspace, feed, feed.first(1.0), host_name="ws-kepler", settings=settings)
    app.run(mouse=False)
    app.save_settings()
    feed.stop()
    sys.exit(app.return_value or 0)
