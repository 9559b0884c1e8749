"""Processes of the agent that end when a test says so."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any


class FakeProcess:
    """In place of `subprocess.Popen`: a process that reports to the descriptor in ``--tell``."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = argv
        self.pid = 0
        self.returncode: int | None = None
        self.is_killed = False
        self._tell = os.dup(int(argv[-1]))

    @classmethod
    def starter(cls, started: list[FakeProcess]) -> Callable[..., FakeProcess]:
        """A function that starts processes and adds them to ``started``."""

        def start(argv: Sequence[str], **_: Any) -> FakeProcess:
            started.append(cls(argv))
            return started[-1]

        return start

    def end(self, problem: str = "") -> None:
        """End with a problem, or with success."""
        os.write(self._tell, problem.encode())
        os.close(self._tell)
        self.returncode = 3 if problem else 0

    def poll(self) -> int | None:
        return self.returncode

    def kill(self) -> None:
        self.is_killed = True
        self.returncode = -9

    def wait(self, _timeout: float) -> int | None:
        return self.returncode
