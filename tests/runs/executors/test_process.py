"""Finding the shim of an attempt whose starter left no note of it."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from gputui.config import locate
from gputui.runs import shim
from gputui.runs.executors.local import LocalExecutor
from gputui.runs.executors.process import find
from gputui.runs.identity import identify
from tests.conftest import wait_until
from tests.runs.test_shim import Attempt, attempt  # noqa: F401 - a fixture


@pytest.mark.parametrize("has_record", [True, False])
def test_the_shim_of_another_installation_is_found(attempt: Attempt, has_record: bool) -> None:  # noqa: F811
    """By the record of its start; before that, by its tag and the attempt's folder."""
    workspace = locate(attempt.folder / "home", {})
    run_dir = workspace.run_dir("job-1")
    elsewhere = attempt.folder / "other" / Path(shim.__file__).name
    elsewhere.parent.mkdir()
    shutil.copy(shim.__file__, elsewhere)
    attempt.folder = run_dir / "attempts" / "1"
    attempt.folder.mkdir(parents=True)
    env = {"GPUTUI_RUN_ID": "job-1", "GPUTUI_RUN_DIR": str(run_dir), "GPUTUI_ATTEMPT": "1"}
    attempt.start("import time; time.sleep(60)", env=env, inherit=env, program=str(elsewhere))
    attempt.started()
    assert attempt.process is not None
    if not has_record:
        (attempt.folder / "started.json").unlink()
    assert find(LocalExecutor(), workspace.run_dir("job-1"), 1) == identify(attempt.process.pid)
    assert find(LocalExecutor(), workspace.run_dir("job-1"), 2) is None


def test_a_record_of_a_process_that_is_gone_names_no_shim(attempt: Attempt) -> None:  # noqa: F811
    workspace = locate(attempt.folder / "home", {})
    attempt.folder = workspace.run_dir("job-1") / "attempts" / "1"
    attempt.folder.mkdir(parents=True)
    attempt.start("import time; time.sleep(60)")
    started = attempt.started()
    os.kill(started["shim_pid"], signal.SIGKILL)
    assert attempt.process is not None
    attempt.process.wait()
    os.kill(started["pid"], signal.SIGKILL)
    wait_until(lambda: identify(started["pid"]) is None, what="the end of the command")
    assert find(LocalExecutor(), workspace.run_dir("job-1"), 1) is None
