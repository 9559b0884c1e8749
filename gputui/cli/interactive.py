"""The bare `gputui`: the screen, in the user's workspace or in a throw-away one of simulated GPUs."""

from __future__ import annotations

import gc
import sys
import time
from contextlib import closing
from pathlib import Path

from gputui.cli.context import EXIT_UNREACHABLE, EXIT_USAGE, Session, actor, fail, typed_moment
from gputui.config import PRIVATE_FILE_MODE, Workspace, locate
from gputui.runs.agent_process import AgentUnreachableError, stop_agent

DEMO_STOP_SECONDS = 40.0
# The seed makes the GPUs of each demo its own: leases count across all homes of a user.
DEMO_SCENARIO = """\
# Simulated GPUs; faults may be added here while the demo runs.
gpus: 8
memory: 80GiB
seed: {seed}
faults: []
"""


def open_screen(session: Session, *, demo: bool, readonly: bool, at: str | None = None) -> int:
    """Open the control center, at the present or at the moment that ``at`` tells. Needs a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        fail("the screen needs a terminal; gputui --once and gputui --record work without one", EXIT_USAGE)
    if not sys.stderr.isatty():
        # Textual draws on the standard error output.
        fail("the screen is drawn on the standard error output; leave it to the terminal (no 2>FILE)", EXIT_USAGE)
    if demo:
        if at is not None:
            fail("--at and --demo do not go together: a demo has no past", EXIT_USAGE)
        return open_demo(readonly=readonly, settings=session.workspace.settings)
    moment_at = None if at is None else typed_moment(at)
    return show(session.workspace, readonly=readonly, demo=False, moment_at=moment_at)


def show(
    workspace: Workspace, *, readonly: bool, demo: bool, settings: Path | None = None, moment_at: float | None = None
) -> int:
    try:
        workspace.create()
    except OSError as error:
        fail(f"cannot use {workspace.state}: {error.strerror}; choose another --home", EXIT_UNREACHABLE)
    # What is imported stays; looking for garbage among it would only delay the first frame.
    gc.disable()
    from gputui.tui.data.feed import Feed
    from gputui.tui.data.snapshot import Moment

    # The first snapshot is read while the screen is still being imported.
    feed = Feed(workspace)
    feed.look_back(None if moment_at is None else Moment(moment_at))
    feed.start()
    from gputui.tui.app import run

    gc.freeze()
    gc.enable()
    return run(workspace, feed, readonly=readonly, demo=demo, settings_path=settings)


def open_demo(*, readonly: bool, settings: Path) -> int:
    """A workspace of simulated GPUs that is gone afterwards, with the runs that were launched in it. ``settings``: the
    file of the user's own settings, which hold here too."""
    import secrets
    import shutil
    import tempfile

    home = Path(tempfile.mkdtemp(prefix="gputui-demo-"))
    workspace = locate(home)
    workspace.create()
    workspace.scenario.write_text(DEMO_SCENARIO.format(seed=secrets.randbelow(1 << 31)), "utf-8")
    workspace.scenario.chmod(PRIVATE_FILE_MODE)
    try:
        return show(workspace, readonly=readonly, demo=True, settings=settings)
    finally:
        end_demo(workspace)
        shutil.rmtree(home, ignore_errors=True)


def end_demo(workspace: Workspace) -> None:
    """Stop what was launched in the demo, then its agent: nothing of it may outlive it."""
    from gputui.store import commands, queries
    from gputui.store.database import StoreError, open_commander

    try:
        with closing(open_commander(workspace.database)) as connection:
            for run in queries.runs(connection, active_only=True):
                commands.submit(
                    connection,
                    "stop",
                    run.run_id,
                    {"now": True},
                    actor(),
                    now=time.time(),
                    doorbell=workspace.doorbell,
                )
            deadline = time.monotonic() + DEMO_STOP_SECONDS
            while queries.runs(connection, active_only=True) and time.monotonic() < deadline:
                time.sleep(0.1)
        stop_agent(workspace)
    except (StoreError, AgentUnreachableError) as error:
        print(f"gputui: {error}", file=sys.stderr)  # noqa: T201
