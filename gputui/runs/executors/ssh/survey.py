"""`gputui targets check` of another machine: each step with a deadline."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from gputui.runs.checks import CheckResult
from gputui.runs.executors.courier import Called, TargetShell, UnreachableError
from gputui.runs.executors.ssh.connection import SshShell

SKEW_SECONDS = 30.0
PYTHON = "import sys; print(sys.version.split()[0]); sys.exit(sys.version_info < (3, 9))"
TORCH = (
    "import torch; nccl = torch.cuda.is_available() and torch.cuda.nccl.version(); "
    "print(torch.__version__, *([f'NCCL {nccl}'] if nccl else []), f'{torch.cuda.device_count()} GPUs')"
)


def survey(target: Mapping[str, Any]) -> Iterator[CheckResult]:
    """Whether it is reached, has what a run needs, which Python and torch, and its clock."""
    shell = SshShell(target)
    try:
        done = shell.call(["date", "+%s"])
        skew = abs(time.time() - float(done.output.strip() or 0))
        yield CheckResult("connection", "pass", str(target["host"]))
        yield CheckResult("clock", "pass" if skew < SKEW_SECONDS else "warn", f"{skew:.0f} s from this machine's")
        gone = [name for name in ("bash", "rsync", "setsid", "nohup", "flock") if shell.call(["which", name]).code != 0]
        yield CheckResult("programs", "fail" if gone else "pass", f"no {', '.join(gone)}" if gone else "all there")
        yield from environment_there(shell, target)
    except UnreachableError as error:
        yield CheckResult("connection", "fail", str(error), "try ssh there yourself; keys, not passwords, are needed")


def environment_there(shell: TargetShell, target: Mapping[str, Any]) -> Iterator[CheckResult]:
    """Which Python and which torch a run has there, after the target's ``setup``. Raises UnreachableError."""
    python, remedy = str(target.get("python") or "python3"), "python: names the training environment's"
    setup = [*target.get("setup", ()), 'exec "$@"']

    def ask(code: str) -> Called:
        return shell.call(["bash", "-c", "\n".join(setup), "bash", python, "-c", code], seconds=60.0)

    version = ask(PYTHON)
    yield CheckResult(
        "python", "pass" if version.code == 0 else "fail", version.output.strip() or version.words, remedy
    )
    torch = ask(TORCH)
    found = torch.output.strip() if torch.code == 0 else f"none: {torch.words}"
    yield CheckResult("torch", "pass" if torch.code == 0 else "warn", found, remedy)
