"""A sink as the agent sees it: a process that it starts, finds again after its own death, and hears the end of."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass

from gputui.config import PRIVATE_FILE_MODE, Workspace, own_python
from gputui.reports.export.follower import WRITE_SECONDS
from gputui.reports.export.memory import MemoryPlace
from gputui.runs.agent_process import AGENT_MARK, RUN_MARKS
from gputui.runs.identity import ProcessIdentity, is_alive, send_signal

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
class SinkProcess:
    """The process of one sink. ``child`` is None where another agent, or a person, started it, ``words`` then too;
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


def adopt(place: MemoryPlace) -> SinkProcess | None:
    """The process that another agent, or a person, started for this sink; None where none lives."""
    holder = place.holder()
    if holder is None or not is_alive(holder.identity):
        return None
    return SinkProcess(holder.identity, is_agents=holder.is_agents)


def start(workspace: Workspace, run_id: str, name: str, place: MemoryPlace) -> SinkProcess:
    """Start the process of a sink, in a session of its own: it outlives this agent. Raises OSError."""
    place.make()
    log_descriptor = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE_MODE)
    # An agent in the foreground may have been started from inside a run, and would hand that run's mark on.
    environment = {name: value for name, value in os.environ.items() if name not in RUN_MARKS}
    python, needed = own_python()
    ours, its = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        child = subprocess.Popen(
            [
                python, "-m", "gputui.reports.export",
                "--state", str(workspace.state), "--run", run_id, "--to", name, "--tell", str(its),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log_descriptor,
            stderr=log_descriptor,
            start_new_session=True,
            env=environment | needed | {AGENT_MARK: "1"},
            cwd="/",
            pass_fds=(its,),
        )  # fmt: skip
    except OSError:
        os.close(ours)
        raise
    finally:
        os.close(its)
        os.close(log_descriptor)
    return SinkProcess(None, child, ours)


def forget_child(process: SinkProcess) -> None:
    """Let go of a process that goes on after this agent."""
    with suppress(OSError):
        if process.words is not None:
            os.close(process.words)
            process.words = None
    if process.child is not None and process.child.poll() is None:
        # It outlives this process on purpose; Popen would complain of it.
        process.child.returncode = 0
