"""What an agent says of itself in its lock's file and in the store, and when it ends."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from gputui.agent.agent_lock import AgentLock
from gputui.agent.context import AgentContext
from gputui.agent.error_barrier import ErrorBarrier
from gputui.agent.recording.output import FileOutput
from gputui.machine.sampler_client import SamplerHealth
from gputui.runs.identity import identify
from gputui.store.database import is_same_file
from gputui.version import VERSION

log = logging.getLogger(__name__)

# Commands of a script follow each other within it, and each would wait for a new agent.
LINGER_SECONDS = 30.0


class AgentOptions(Struct, frozen=True):
    """Options of an agent.

    Attributes:
        recording: run without clients or runs.
        interval_seconds: that of samples.
        duration_seconds: end after that time.
        linger_seconds: stay that long without clients.
        output: a second destination of samples.
    """

    recording: bool = False
    interval_seconds: float = 1.0
    duration_seconds: float | None = None
    linger_seconds: float = LINGER_SECONDS
    output: FileOutput | None = None


class EndConditions:
    """When an agent ends by itself. Times are monotonic seconds.

    Attributes:
        own_files: the database and the lock's file as this agent has opened them.
        began_at: when its loop began.
        needed_at: when somebody last needed it.
    """

    def __init__(self, options: AgentOptions, own_files: Mapping[Path, os.stat_result], now: float) -> None:
        self.options = options
        self.own_files = own_files
        self.began_at = now
        self.needed_at = now

    def begin(self, now: float) -> None:
        """Count the times from now on."""
        self.began_at = now
        self.needed_at = now

    def is_replaced(self) -> bool:
        """Return whether another file took the place of one of its own."""
        is_replaced = False
        for path, status in self.own_files.items():
            if not is_same_file(path, status):
                log.error("%s was replaced or removed; starting over with what is there", path)
                is_replaced = True
        return is_replaced

    def is_over(self, now: float) -> bool:
        """Return whether it has run for as long as it was to."""
        duration_seconds = self.options.duration_seconds
        return duration_seconds is not None and now - self.began_at >= duration_seconds

    def is_unneeded(self, now: float) -> bool:
        """Return whether nobody has needed it for the time that it waits for clients."""
        return now - self.needed_at >= self.options.linger_seconds


class SelfReport:
    """What an agent says of itself in its lock's file and in its row of the store.

    Attributes:
        started_at: when it began (UTC unix seconds).
        stored_longest_turn: the seconds of the longest turn as stored.
        stored_health: the sampler's state as stored, and since how many seconds it is silent.
    """

    def __init__(self, lock: AgentLock, options: AgentOptions) -> None:
        self.lock = lock
        self.options = options
        self.started_at = time.time()
        identity = identify(os.getpid())
        assert identity is not None
        self.identity = identity
        self.stored_longest_turn = 0.0
        self.stored_health: tuple[str, int] | None = None

    def describe(self, doing: str | None = None, *, ready: bool = False) -> None:
        """Write into the lock's file who holds it, and what clients have to wait for. A waiting
        client goes on as soon as it reads ``ready``."""
        self.lock.describe(
            {
                **self.identity._asdict(),
                "version": VERSION,
                "started_at": self.started_at,
                "recording": self.options.recording,
                "ready": ready,
                "doing": doing,
            }
        )

    def write_row(self, context: AgentContext) -> None:
        """Write the row anew."""
        values = (*self.identity, VERSION, self.started_at, context.now(), self.options.recording)
        context.connection.execute(
            "INSERT OR REPLACE INTO agent (id, pid, start_ticks, boot_id, version, started_at, "
            "heartbeat_at, recording, interval_seconds) VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*values, self.options.interval_seconds),
        )

    def note_sampler(self, context: AgentContext, health: SamplerHealth, problem: str | None) -> None:
        """Store the sampler's state if it has changed; ``problem`` is why no GPU can be read."""
        silent = None if health.state == "ok" else health.for_seconds
        health_row = (health.state, int(silent or 0))
        if health_row != self.stored_health:
            context.connection.execute(
                "UPDATE agent SET sampler_state = ?, sampler_silent_seconds = ?, heartbeat_at = ?, gpu_problem = ?",
                (health.state, silent, context.now(), problem),
            )
            self.stored_health = health_row

    def note_longest_turn(self, context: AgentContext, barrier: ErrorBarrier) -> None:
        """Store the longest turn if it has become longer."""
        if barrier.longest_seconds > self.stored_longest_turn:
            self.stored_longest_turn = barrier.longest_seconds
            context.connection.execute(
                "UPDATE agent SET longest_turn_seconds = ?, longest_turn_part = ?",
                (barrier.longest_seconds, barrier.longest_step),
            )
