"""The bare `gputui`: the screen, in the user's workspace or one of simulated GPUs."""

from __future__ import annotations

import contextlib
import gc
import shutil
import sys
from pathlib import Path

import click

from gputui.core.config import Workspace
from gputui.runs.agent_process import AgentUnreachableError
from gputui.store.database import StoreError
from gputui.ui.cli.context import Exit, Session, exit_on, fail, typed_moment


def open_screen(session: Session, *, demo: bool, at: str | None = None) -> int:
    """Open the screen, at the present or at the moment ``at``. Needs a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        fail("the screen needs a terminal; gputui --once and gputui --record work without one", Exit.USAGE)
    if not sys.stderr.isatty():
        # Textual draws on the standard error output.
        fail("the screen is drawn on the standard error output; leave it to the terminal (no 2>FILE)", Exit.USAGE)
    if demo:
        return open_demo(readonly=session.is_readonly, settings=session.workspace.settings, at=at)
    moment_at = typed_moment(at)
    if session.is_readonly and not session.workspace.database.exists():
        fail(f"nothing was recorded in {session.workspace.state}, and --readonly starts no agent", Exit.REFUSED)
    return show(session.workspace, readonly=session.is_readonly, demo=False, moment_at=moment_at)


def show(workspace: Workspace, *, readonly: bool, demo: bool, moment_at: float | None = None) -> int:
    if not readonly:
        before = f"cannot use {workspace.state}: "
        after = "; choose another --home"
        with exit_on(OSError, code=Exit.UNREACHABLE, before=before, after=after):
            workspace.create()
    # Imported modules are no garbage; collecting now would only delay the first frame.
    gc.disable()
    from gputui.ui.tui.data.feed import Feed
    from gputui.ui.views.snapshot import Moment

    # The first snapshot is read while the screen is still being imported.
    feed = Feed(workspace)
    moment = None if moment_at is None else Moment(moment_at)
    feed.look_back(moment)
    feed.start()
    from gputui.ui.tui.app import run

    gc.freeze()
    gc.enable()
    return run(workspace, feed, readonly=readonly, demo=demo)


def open_demo(*, readonly: bool, settings: Path, at: str | None) -> int:
    """Open the screen in a home of simulated GPUs and past runs, which is removed at the end. The
    user's ``settings`` (a file) apply to it, and remain as they are."""
    from gputui.ui.demo.home import demo_home

    click.echo("preparing the demo: eight simulated GPUs with a week of past runs …", err=True)
    try:
        with demo_home() as workspace:
            with contextlib.suppress(OSError):
                shutil.copyfile(settings, workspace.settings)
            return show(workspace, readonly=readonly, demo=True, moment_at=typed_moment(at))
    except (StoreError, AgentUnreachableError, OSError) as error:
        fail(f"the demo cannot start: {error}", Exit.UNREACHABLE)
