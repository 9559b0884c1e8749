"""A launch without a training, for ``gputui target check``: the same folder, copies, script and
interpreter as those of a run, with a command that ends at once."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gputui.runs.checks import CheckResult
from gputui.runs.executors.commands import TargetRefusalError, last_line
from gputui.runs.executors.remote_runner import python_of, text_of
from gputui.runs.executors.ssh.ssh_runner import SshMirror, SshRunner, remove_run_folder
from gputui.runs.launchers.base import OUTPUT
from gputui.runs.logs import FIRST_NODE
from gputui.runs.shim_records import read_record
from gputui.runs.submission import write_private

REHEARSAL_SECONDS = 60.0  # imports from a cold disk of the network
_REMEDY = "a run would fail in the same way"


def rehearse_launch(target: Mapping[str, Any]) -> CheckResult:
    """Run a command there as an attempt is run. Raises UnreachableError."""
    with _attempt(target, SshRunner) as runner:
        runner.contacts.poll_seconds = 0.2
        deadline = time.monotonic() + REHEARSAL_SECONDS
        while not runner.poll():
            if runner.contacts.problem is not None or time.monotonic() > deadline:
                text = runner.contacts.problem or f"its end has not arrived within {REHEARSAL_SECONDS:.0f} s"
                return CheckResult("launch", "fail", text, _REMEDY)
            time.sleep(0.1)
        record = read_record(runner.folder / "exit.json") or {}
        if record.get("code") == 0:
            return CheckResult("launch", "pass", "a command was copied, started and ended there")
        output = text_of(runner.folder / FIRST_NODE / OUTPUT)
        text = str(record.get("error") or last_line(output) or f"it ended with code {record.get('code')}")
        return CheckResult("launch", "fail", text, _REMEDY)


def rehearse_copy(target: Mapping[str, Any], runner_class: Callable[[Path], SshMirror]) -> CheckResult:
    """Do there what precedes the submission of a job: copy the files, and start the interpreter
    once. Raises UnreachableError."""
    with _attempt(target, runner_class) as runner:
        try:
            runner.send()
            runner.ask()
        except TargetRefusalError as error:
            return CheckResult("launch", "fail", str(error), _REMEDY)
    return CheckResult("launch", "pass", "files were copied there and read by the interpreter")


@contextlib.contextmanager
def _attempt(target: Mapping[str, Any], runner_class: Callable[[Path], SshMirror]) -> Iterator[SshMirror]:
    """A runner of an attempt that runs nothing, whose folders here and there are removed."""
    with tempfile.TemporaryDirectory(prefix="gputui-check-") as home:
        run_dir = Path(home, "check")
        folder = run_dir / "attempts" / "1"
        (folder / FIRST_NODE).mkdir(parents=True)
        plan: dict[str, Any] = {
            "run_id": run_dir.name,
            "attempt": 1,
            "target": dict(target),
            "argv": [python_of({"target": target, "argv": ["python3"]}), "-c", "pass"],
            "env": {},
            "cwd": str(run_dir),
            "output": f"{FIRST_NODE}/{OUTPUT}",
            "grace_seconds": 5.0,
            "gpus": [],
            "asks": {"gpus": 0, "ranks": 1},
            "metrics": [],
        }
        write_private(folder / "attempt.json", plan)
        try:
            yield runner_class(folder)
        finally:
            with contextlib.suppress(OSError):
                remove_run_folder(run_dir, target)
