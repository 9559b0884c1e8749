"""One attempt of which processes may exist: its shim, what it is told, and what is done about what it left behind."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from dataclasses import dataclass

from gputui.agent.jobs import Job
from gputui.agent.lifecycle import attempt_launch
from gputui.agent.lifecycle.examination import Findings, Task
from gputui.runs.identity import ProcessIdentity, boot_id, is_alive, open_pidfd, send_signal
from gputui.runs.repository import AttemptRecord

TERM_BEFORE_KILL_SECONDS = 2.0
UNKILLABLE_SECONDS = 30.0

# The intent of a stop that gives no grace, as it is noted in the attempt's row.
KILL = "kill"


@dataclass(slots=True)
class LiveAttempt:
    """``pidfd`` becomes readable the moment the shim ends; ``is_seen_alive``: its command was seen to do something;
    ``looked_at`` (for that) and ``sweeping_since`` are in seconds of a monotonic clock. ``ended_clock`` (monotonic) and
    ``ended_at`` (UTC unix seconds): when nothing of it was left.
    ``is_reading_rest``: it has ended, and its metrics files hold more than one turn can read. ``examination`` looks at
    what ``task`` names."""

    record: AttemptRecord
    shim: ProcessIdentity | None
    pidfd: int | None = None
    is_reaped: bool = False
    is_told: bool = False
    is_seen_alive: bool = False
    looked_at: float = float("-inf")
    sweeping_since: float | None = None
    ended_at: float | None = None
    ended_clock: float = 0.0
    is_reading_rest: bool = False
    task: Task | None = None
    examination: Job[Findings] | None = None

    @property
    def is_running(self) -> bool:
        """As far as is known, its command has not ended."""
        has_ended = self.sweeping_since is not None or self.ended_at is not None or self.is_reading_rest
        return self.examination is None and not has_ended

    def watch(self, selector: selectors.BaseSelector) -> None:
        """Let the selector wake when the shim ends. Without a descriptor, the end is noticed a little later."""
        if self.shim is None or not is_alive(self.shim):
            return
        with contextlib.suppress(ProcessLookupError):
            self.pidfd = open_pidfd(self.shim.pid)
        if self.pidfd is None:
            return
        try:
            selector.register(self.pidfd, selectors.EVENT_READ, None)
        except OSError:
            os.close(self.pidfd)
            self.pidfd = None

    def release(self, selector: selectors.BaseSelector) -> None:
        """Let go of the shim's descriptor, and reap it where it was our child."""
        if self.pidfd is not None:
            selector.unregister(self.pidfd)
            os.close(self.pidfd)
            self.pidfd = None
        if self.shim is not None and not self.is_reaped and self.shim.boot_id == boot_id():
            attempt_launch.reap(self.shim.pid)
        self.is_reaped = True

    def ask_to_end(self, *, at_once: bool) -> None:
        """Tell the shim to end the attempt, with the profile's grace or without."""
        if self.shim is not None:
            send_signal(self.shim, signal.SIGUSR2 if at_once else signal.SIGTERM)
            # One that somebody stopped would never notice.
            send_signal(self.shim, signal.SIGCONT)

    def sweep(self, left: list[ProcessIdentity], now: float) -> bool:
        """End what a dead shim left behind. True when there is no more to be done: what is left cannot be killed.
        ``now`` is monotonic."""
        if self.sweeping_since is None:
            self.sweeping_since = now
            for process in left:
                send_signal(process, signal.SIGTERM)
                send_signal(process, signal.SIGCONT)
            return False
        if now - self.sweeping_since > UNKILLABLE_SECONDS:
            return True
        if now - self.sweeping_since > TERM_BEFORE_KILL_SECONDS:
            for process in left:
                send_signal(process, signal.SIGKILL)
        return False
