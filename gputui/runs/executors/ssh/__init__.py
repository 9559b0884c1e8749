"""SSH: the shim runs on another machine of the user. A runner starts it, fetches the data that its
files grow by, and forwards a stop.

In: an attempt's folder. Out: the files of the contract. Read first: ssh_runner.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputui.runs.checks import CheckResult, graded
from gputui.runs.executors.base import RunnerExecutor
from gputui.runs.executors.commands import CommandResult, TargetShell, UnreachableError, last_line
from gputui.runs.executors.ssh.connection import PYTHON, SshShell, script

if TYPE_CHECKING:
    from gputui.runs.command import Launch
    from gputui.runs.spec import RunSpec

SKEW_SECONDS = 30.0  # times in lists of two machines would be visibly out of order
DATE = ("date", "+%s")
TORCH = (
    "import torch; nccl = torch.cuda.is_available() and torch.cuda.nccl.version(); "
    "print(torch.__version__, *([f'NCCL {nccl}'] if nccl else []), f'{torch.cuda.device_count()} GPUs')"
)
GPUS = ("bash", "-lc", "gputui gpus --json")

_UNKNOWN = "which GPUs are free is unknown"
_REMEDY = "try gputui gpus there"


class SshExecutor(RunnerExecutor):
    """Attempts on another machine of the user, over SSH."""

    runner = Path(__file__).with_name("ssh_runner.py")

    def sees_checkpoints(self, target: Mapping[str, Any]) -> bool:
        return False

    def clear(self, folder: Path, target: Mapping[str, Any]) -> None:
        from gputui.runs.executors.ssh.ssh_runner import remove_run_folder

        remove_run_folder(folder, target)

    def preview_script(self, spec: RunSpec, launch: Launch) -> str:
        from gputui.runs.executors.ssh.ssh_runner import job_script

        return job_script(self.preview_plan(spec, launch), self.preview_folder(spec, launch), "CLAIM")

    def survey(self, target: Mapping[str, Any]) -> Iterator[CheckResult]:
        """Check the connection, the clock, the programs that a run needs, the training environment,
        and a launch."""
        from gputui.runs.executors.ssh.rehearsal import rehearse_launch

        shell = SshShell(target)
        try:
            date = shell.call(DATE)
            yield CheckResult("connection", "pass", str(target["host"]))
            yield judge_clock(date.output, time.time())
            programs = ("bash", "rsync", "setsid", "nohup", "flock")
            missing = [name for name in programs if shell.call(script('command -v "$1"', name)).code != 0]
            text = f"no {', '.join(missing)}" if missing else "all there"
            yield graded("programs", text, fails=bool(missing))
            yield judge_gpus(shell.call(GPUS))
            yield from check_environment(shell, target)
            yield rehearse_launch(target)
        except UnreachableError as error:
            yield CheckResult(
                "connection", "fail", str(error), "try ssh there yourself; keys, not passwords, are needed"
            )


def judge_clock(printed: str, now: float) -> CheckResult:
    """Compare a machine's clock with this one's.

    Args:
        printed: its output, of which the last word is its time (UTC unix seconds); a login may print text before it.
        now: UTC unix seconds.
    """
    try:
        skew = abs(now - float(printed.split()[-1]))
    except (IndexError, ValueError):
        return CheckResult("clock", "warn", f"its time is unknown: {last_line(printed) or 'nothing was printed'}")
    return graded("clock", f"{skew:.0f} s from this machine's", warns=skew >= SKEW_SECONDS)


def check_environment(shell: TargetShell, target: Mapping[str, Any]) -> Iterator[CheckResult]:
    """Check the Python and torch of a run there, after the target's ``setup``. Raises
    UnreachableError."""
    python = str(target.get("python") or "python3")
    remedy = "python: names the training environment's"
    # Without ~/.bashrc, which bash reads for a command of sshd, but not for a job's script.
    setup = ["bash", "--norc", "-c", "\n".join([*target.get("setup", ()), 'exec "$@"']), "bash"]
    # Jobs begin after the set-up; what they wrote is asked for without it.
    tries = [shell.call([*prefix, python, "-c", PYTHON], seconds=60.0) for prefix in (setup, script('exec "$@"'))]
    failed = next((f"{python}: {result.words}" for result in tries if result.code != 0), None)
    text = failed or last_line(tries[0].output)
    yield graded("python", text, remedy, fails=failed is not None)
    torch = shell.call([*setup, python, "-c", TORCH], seconds=60.0)
    text = last_line(torch.output) if torch.code == 0 else f"none: {torch.words}"
    yield graded("torch", text, remedy, warns=torch.code != 0)


def judge_gpus(done: CommandResult) -> CheckResult:
    """Judge the answer to GPUS, by the gputui of a machine. Leases there count, too."""
    if done.code == 127:
        return CheckResult("gpus", "skip", f"{_UNKNOWN}: there is no gputui there, and runs may share one")
    if done.code != 0:
        return CheckResult("gpus", "warn", f"{_UNKNOWN}: {done.words}", _REMEDY)
    try:
        gpus = json.loads(done.output.strip().rpartition("\n")[2])  # a login may print text before it
        # Not free: lost, leased, used by anybody, held by another home or user, in quarantine, or left to others.
        uses = ("run_id", "processes", "locked_by", "quarantine", "excluded")
        in_use = [gpu["state"] != "ok" or any(gpu[use] for use in uses) for gpu in gpus]
        users = dict.fromkeys(str(gpu["run_id"]) for gpu in gpus if gpu["run_id"] is not None)
    except (ValueError, KeyError, TypeError):
        return CheckResult("gpus", "warn", f"{_UNKNOWN}: the gputui there gives another answer", _REMEDY)
    by = f"; runs there: {', '.join(users)}" if users else ""
    remedy = "gputui asks nobody there: choose others with gpus:, or wait"
    free = sum(not is_in_use for is_in_use in in_use)
    return graded("gpus", f"{free} of {len(gpus)} free by the gputui there{by}", remedy, warns=not free)
