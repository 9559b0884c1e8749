"""Telling somebody ends in time, whatever the command or the server does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gputui.agent.outbox import describe, run_command
from gputui.recovery.policies import NoticeTarget
from gputui.runs.identity import identify
from gputui.runs.shim import all_pids
from tests.conftest import wait_until
from tests.texts import mentions

MESSAGE = {"text": "it is over", "run_id": "r-1"}

# Leaves a process behind that holds its standard error, and says where.
LEAVES = """
import pathlib, subprocess, sys, time
left = subprocess.Popen(["sleep", "600"])
pathlib.Path(sys.argv[1]).write_text(str(left.pid))
time.sleep(float(sys.argv[2]))
"""


def notice(*command: str) -> NoticeTarget:
    return NoticeTarget(command=command, webhook=None)


def test_a_command_that_never_ends_is_killed_with_what_it_started(tmp_path: Path) -> None:
    command = notice(sys.executable, "-c", LEAVES, str(tmp_path / "pid"), "60")
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        run_command(command, MESSAGE, seconds=2.0)
    assert mentions(describe(caught.value), "2 s")
    left = int((tmp_path / "pid").read_text())
    wait_until(lambda: left not in all_pids() or identify(left) is None, what="the end of the process")


def test_what_a_command_gets_and_what_it_says_last() -> None:
    echo = "import json, sys; sys.exit(json.load(sys.stdin)['run_id'] + sys.argv[-1] + 'x' * 100000 + chr(10) + 'full')"
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run_command(notice(sys.executable, "-c", echo), MESSAGE)
    assert mentions(describe(caught.value), "code 1", "full")
