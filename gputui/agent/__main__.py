"""`python -m gputui.agent`: the agent as a process in the background."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gputui.agent.startup import run_in_background
from gputui.core.config import Workspace


def main() -> int:
    parser = argparse.ArgumentParser(prog="gputui.agent")
    parser.add_argument("--profiles", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS")
    parser.add_argument("--linger", type=float, default=None, metavar="SECONDS")
    parser.add_argument("--successor", action="store_true", help="only if no person ended the last")
    options = parser.parse_args()
    workspace = Workspace(profiles=options.profiles, state=options.state)
    if options.successor and workspace.agent_stopped.exists():
        return 0
    return run_in_background(workspace, interval_seconds=options.interval, linger_seconds=options.linger)


if __name__ == "__main__":
    sys.exit(main())
