"""A run that lives through an upgrade: an older shim serves it, in the layout of before `nodes/0`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gputui.metrics.formats import Reading
from gputui.metrics.ingest import MetricsIngest
from gputui.runs import repository
from gputui.runs.command import Launch
from gputui.runs.repository import transaction
from gputui.runs.spec import MetricsSpec, RunSpec
from gputui.runs.submission import SPEC_FILE, write_private, write_spec
from gputui.store.database import open_writer
from gputui.store.run_states import RunState
from gputui.store.runs import get_run
from tests.conftest import wait_until
from tests.machine import Machine

OLD_SHIM = Path(__file__).with_name("old_shim.py.txt")
PATTERN = r"step (?P<step>\d+) loss (?P<loss>\S+)"
SCRIPT = """
import os, pathlib, time
print("step 1 loss 0.5", flush=True)
while not pathlib.Path(os.environ["GPUTUI_RUN_DIR"], "enough").exists():
    time.sleep(0.02)
print("step 2 loss 0.25", flush=True)
raise ValueError("the dog ate the gradients")
"""


@pytest.fixture
def shim(machine: Machine) -> Iterator[subprocess.Popen[bytes]]:
    """The shim of an older gputui at work on attempt 1 of a run, as its agent left it."""
    (machine.folder / "train.py").write_text(SCRIPT)
    run_dir = machine.workspace.run_dir("old-1")
    folder = run_dir / "attempts" / "1"
    folder.mkdir(parents=True)
    metrics = MetricsSpec("stdout", None, (PATTERN,))
    spec = RunSpec(
        name="old", launcher="python", program=("train.py",), workdir=str(machine.folder), python=sys.executable,
        metrics=(metrics,), recovery={"policy": "off"},
    )  # fmt: skip
    tags = {"GPUTUI_RUN_ID": "old-1", "GPUTUI_RUN_DIR": str(run_dir), "GPUTUI_ATTEMPT": "1"}
    launch = Launch((sys.executable, "train.py"), tags, str(machine.folder), 5.0)
    write_spec(run_dir / SPEC_FILE, spec)
    write_private(folder / "attempt.json", {**launch.to_json(), "run_id": "old-1", "attempt": 1, "lock_files": []})
    with closing(open_writer(machine.workspace.database)) as connection, transaction(connection):
        ingest = MetricsIngest(connection)
        repository.insert_run(
            connection, run_id="old-1", sequence=1, name="old", spec=spec, params={}, now=1.0, actor="me"
        )
        ingest.open_source("old-1", str(run_dir), "stdout", Reading((PATTERN,)))
        run = get_run(connection, "old-1")
        assert run is not None
        repository.insert_attempt(connection, run, number=1, gpus=(), launch=launch, now=1.0)
        ingest.begin_attempt("old-1", 1, "output.log")
        repository.move(connection, run, RunState.STARTING, cause="attempt 1", now=1.0)
    program = machine.folder / "older" / "shim.py"
    program.parent.mkdir()
    shutil.copy(OLD_SHIM, program)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(program), str(folder)], start_new_session=True, env={**os.environ, **tags}
    )
    wait_until((folder / "started.json").exists, what="the start")
    yield process
    process.kill()
    process.wait()


def test_the_new_agent_adopts_it_and_reads_all_that_it_left(machine: Machine, shim: subprocess.Popen[bytes]) -> None:
    machine.gputui("agent", "start")
    machine.wait_for("old-1", "running")
    assert machine.shim("old-1").pid == shim.pid
    (machine.workspace.run_dir("old-1") / "enough").touch()
    shim.wait(30)
    machine.wait_for("old-1", "failed")
    (attempt,) = machine.json("show", "old-1")["attempts"]
    assert attempt["incident"]["kind"] == "user_exception"
    assert "the dog ate the gradients" in machine.gputui("logs", "old-1")
    assert [step for _, step in machine.steps("old-1")] == [1, 2]


def test_a_stop_reaches_it(machine: Machine, shim: subprocess.Popen[bytes]) -> None:
    machine.gputui("agent", "start")
    machine.wait_for("old-1", "running")
    machine.gputui("stop", "old-1")
    machine.wait_for("old-1", "stopped")
    assert shim.wait(30) == 0 and not (machine.workspace.run_dir("old-1") / "attempts" / "2").exists()
