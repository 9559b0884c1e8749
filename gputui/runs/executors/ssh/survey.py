"""`gputui targets check` of another machine: each step with a deadline."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from gputui.runs.checks import CheckResult
from gputui.runs.executors.courier import (
    PYTHON,
    CommandResult,
    TargetShell,
    UnreachableError,
    last_line,
)
from gputui.runs.executors.ssh.connection import SshShell

SKEW_SECONDS = 30.0
DATE = ("date", "+%s")
TORCH = (
    "import torch; nccl = torch.cuda.is_available() and torch.cuda.nccl.version(); "
    "print(torch.__version__, *([f'NCCL {nccl}'] if nccl else []), f'{torch.cuda.device_count()} GPUs')"
)


def survey(target: Mapping[str, Any]) -> Iterator[CheckResult]:
    """Check the connection, the clock, the programs that a run needs, and the training environment."""
    shell = SshShell(target)
    try:
        date = shell.call(DATE)
        yield CheckResult("connection", "pass", str(target["host"]))
        yield judge_clock(date, time.time())
        programs = ("bash", "rsync", "setsid", "nohup", "flock")
        missing = [name for name in programs if shell.call(["which", name]).code != 0]
        text = f"no {', '.join(missing)}" if missing else "all there"
        yield CheckResult("programs", "fail" if missing else "pass", text)
        yield from environment_there(shell, target)
    except UnreachableError as error:
        yield CheckResult("connection", "fail", str(error), "try ssh there yourself; keys, not passwords, are needed")


def judge_clock(date: CommandResult, now: float) -> CheckResult:
    """Compare the answer to DATE with this machine's time ``now`` (UTC unix seconds). A login shell's profile may print
    text before it."""
    try:
        skew = abs(now - float(date.output.split()[-1]))
    except (IndexError, ValueError):
        return CheckResult("clock", "warn", f"its time is unknown: {date.words}")
    return CheckResult("clock", "pass" if skew < SKEW_SECONDS else "warn", f"{skew:.0f} s from this machine's")


def environment_there(shell: TargetShell, target: Mapping[str, Any]) -> Iterator[CheckResult]:
    """Check the Python and torch of a run there, after the target's ``setup``. Raises UnreachableError."""
    python, remedy = str(target.get("python") or "python3"), "python: names the training environment's"
    setup = ["bash", "-c", "\n".join([*target.get("setup", ()), 'exec "$@"']), "bash"]
    # Jobs begin after the set-up; what they wrote is asked for without it.
    tries = [shell.call([*words, python, "-c", PYTHON], seconds=60.0) for words in (setup, [])]
    failed = next((f"{python}: {each.words}" for each in tries if each.code != 0), None)
    text = failed or last_line(tries[0].output)
    yield CheckResult("python", "pass" if failed is None else "fail", text, remedy)
    torch = shell.call([*setup, python, "-c", TORCH], seconds=60.0)
    text = last_line(torch.output) if torch.code == 0 else f"none: {torch.words}"
    yield CheckResult("torch", "pass" if torch.code == 0 else "warn", text, remedy)
