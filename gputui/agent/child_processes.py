"""Helper processes that outlive the agent (sinks, studies): start them, adopt a predecessor's, read their outcome."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from gputui.core.config import PRIVATE_FILE_MODE, own_python
from gputui.machine.child import signal_name
from gputui.reports.export.follower import WRITE_SECONDS
from gputui.runs.agent_process import AGENT_MARK, RUN_MARKS
from gputui.runs.identity import ProcessIdentity, has_open, holder, is_alive, send_signal

_ELSEWHERE = 5
"""Exit code for `Ended.is_elsewhere`: see `gputui.reports.export.__main__`."""

_REPORT_BYTES = 4096
KILL_SECONDS = 0.02


class Ended(Struct, frozen=True):
    """Outcome of a process. ``problem`` is None on success. ``is_elsewhere``: a process that the agent cannot see, such
    as one on another host, already does the work."""

    problem: str | None
    is_elsewhere: bool = False


@dataclass(slots=True)
class ChildProcess:
    """One process. ``child`` and ``report`` (the read end of the pipe for its last message) are None if another agent
    or a person started it. ``is_agents`` is False for a person's process, which is never killed."""

    identity: ProcessIdentity | None
    child: subprocess.Popen[bytes] | None = None
    report: int | None = None
    is_agents: bool = True

    def ended(self) -> Ended | None:
        """The outcome, or None while the process runs."""
        if self.child is None:
            alive = self.identity is not None and is_alive(self.identity)
            return None if alive else Ended(None)
        code = self.child.poll()
        if code is None:
            return None
        problem = self._read_report()
        if code in (0, _ELSEWHERE):
            return Ended(None, code == _ELSEWHERE)
        if code == -signal.SIGALRM:
            return Ended(f"a write did not end within {WRITE_SECONDS // 60} minutes")
        if code < 0:
            return Ended(problem or f"its process was ended by {signal_name(-code)}")
        return Ended(problem or f"its process ended with code {code}")

    def kill(self) -> None:
        """Kill the process unless a person started it. One in uninterruptible sleep is not waited for."""
        if self.child is not None and self.child.poll() is None:
            self.child.kill()
            with suppress(subprocess.TimeoutExpired):
                self.child.wait(KILL_SECONDS)
        elif self.child is None and self.identity is not None and self.is_agents:
            send_signal(self.identity, signal.SIGKILL)
        self._read_report()

    def _read_report(self) -> str:
        if self.report is None:
            return ""
        try:
            text = os.read(self.report, _REPORT_BYTES).decode("utf-8", "replace").strip()
        except OSError:
            text = ""
        os.close(self.report)
        self.report = None
        return text


def adopt(lock: Path) -> ChildProcess | None:
    """The live process that holds ``lock``, started by another agent or a person; None if there is none."""
    found = holder(lock)
    if found is None or not is_alive(found.identity) or has_open(found.identity.pid, lock) is False:
        return None
    return ChildProcess(found.identity, is_agents=found.is_agents)


def start(module: str, arguments: Sequence[str], log: Path) -> ChildProcess:
    """Start a module of gputui in a new session, so that it outlives this agent. It reports a failure to the descriptor
    in ``--tell``; its stdout and stderr go to ``log``. Raises OSError."""
    # A foreground agent may itself run inside a run: the child must not inherit that run's environment tag.
    environment = {name: value for name, value in os.environ.items() if name not in RUN_MARKS}
    python, needed = own_python()
    report, its_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        log_descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE_MODE)
    except OSError:
        os.close(report)
        os.close(its_end)
        raise
    try:
        child = subprocess.Popen(
            [python, "-m", module, *arguments, "--tell", str(its_end)],
            stdin=subprocess.DEVNULL,
            stdout=log_descriptor,
            stderr=log_descriptor,
            start_new_session=True,
            env=environment | needed | {AGENT_MARK: "1"},
            cwd="/",
            pass_fds=(its_end,),
        )
    except OSError:
        os.close(report)
        raise
    finally:
        os.close(its_end)
        os.close(log_descriptor)
    return ChildProcess(None, child, report)


def forget_child(process: ChildProcess) -> None:
    """Close the handles of a process that continues after this agent."""
    with suppress(OSError):
        if process.report is not None:
            os.close(process.report)
            process.report = None
    if process.child is not None and process.child.poll() is None:
        # Otherwise Popen warns about a child that is still running.
        process.child.returncode = 0
