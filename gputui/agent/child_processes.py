"""Processes that outlive the agent, such as sinks and studies: it starts them, finds them again after its own death,
and hears of their end."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gputui.config import PRIVATE_FILE_MODE, own_python
from gputui.reports.export.follower import WRITE_SECONDS
from gputui.runs.agent_process import AGENT_MARK, RUN_MARKS
from gputui.runs.identity import ProcessIdentity, is_alive, send_signal
from gputui.runs.process_lock import holder

# Which exit code says that another process does the work already: `gputui.reports.export.__main__`.
_ELSEWHERE = 5
_WORDS_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: ``words`` say what went wrong, None where all is well. ``is_elsewhere``: another process,
    which cannot be seen from here, does the work already."""

    words: str | None
    is_elsewhere: bool = False


@dataclass(slots=True)
class ChildProcess:
    """One process. ``child`` is None where another agent, or a person, started it, ``words`` then too;
    ``is_agents`` is False where a person did: it is never ended from here."""

    identity: ProcessIdentity | None
    child: subprocess.Popen[bytes] | None = None
    words: int | None = None
    is_agents: bool = True

    def ended(self) -> Ended | None:
        """None while it runs."""
        if self.child is None:
            alive = self.identity is not None and is_alive(self.identity)
            return None if alive else Ended(None)
        code = self.child.poll()
        if code is None:
            return None
        words = self._last_words()
        if code in (0, _ELSEWHERE):
            return Ended(None, code == _ELSEWHERE)
        if code == -signal.SIGALRM:
            return Ended(f"a write did not end within {WRITE_SECONDS // 60} minutes")
        if code < 0:
            return Ended(words or f"its process was ended by {signal.Signals(-code).name}")
        return Ended(words or f"its process ended with code {code}")

    def kill(self) -> None:
        """End it, if it is there and an agent started it."""
        if self.child is not None and self.child.poll() is None:
            self.child.kill()
            self.child.wait()
        elif self.child is None and self.identity is not None and self.is_agents:
            send_signal(self.identity, signal.SIGKILL)
        self._last_words()

    def _last_words(self) -> str:
        if self.words is None:
            return ""
        try:
            text = os.read(self.words, _WORDS_BYTES).decode("utf-8", "replace").strip()
        except OSError:
            text = ""
        os.close(self.words)
        self.words = None
        return text


def adopt(lock: Path) -> ChildProcess | None:
    """The process that another agent, or a person, started and that took ``lock``; None where none lives."""
    found = holder(lock)
    if found is None or not is_alive(found.identity):
        return None
    return ChildProcess(found.identity, is_agents=found.is_agents)


def start(module: str, arguments: Sequence[str], log: Path) -> ChildProcess:
    """Start a module of gputui in a session of its own: it outlives this agent. It gets ``--tell`` with the descriptor
    for its last words; what its libraries print goes to ``log``. Raises OSError."""
    log_descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE_MODE)
    # An agent in the foreground may have been started from inside a run, and would hand that run's mark on.
    environment = {name: value for name, value in os.environ.items() if name not in RUN_MARKS}
    python, needed = own_python()
    ours, its = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        child = subprocess.Popen(
            [python, "-m", module, *arguments, "--tell", str(its)],
            stdin=subprocess.DEVNULL,
            stdout=log_descriptor,
            stderr=log_descriptor,
            start_new_session=True,
            env=environment | needed | {AGENT_MARK: "1"},
            cwd="/",
            pass_fds=(its,),
        )
    except OSError:
        os.close(ours)
        raise
    finally:
        os.close(its)
        os.close(log_descriptor)
    return ChildProcess(None, child, ours)


def forget_child(process: ChildProcess) -> None:
    """Let go of a process that goes on after this agent."""
    with suppress(OSError):
        if process.words is not None:
            os.close(process.words)
            process.words = None
    if process.child is not None and process.child.poll() is None:
        # It outlives this process on purpose; Popen would complain of it.
        process.child.returncode = 0
