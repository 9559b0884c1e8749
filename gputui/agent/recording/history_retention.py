"""Retention of the hardware history: roll up samples, sum energy, and delete what exceeds the limits in record.yaml."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gputui.agent.recording import run_energy
from gputui.agent.recording.event_expiry import EventExpiry
from gputui.agent.recording.pruning import Pruning
from gputui.agent.recording.recorder import Recorder
from gputui.agent.recording.sample_rollups import Rollups
from gputui.core.config import file_identity
from gputui.core.units import bytes_text
from gputui.store.database import room
from gputui.store.events import add_event
from gputui.store.retention import Retention

log = logging.getLogger(__name__)

# Budget of one turn, which is spent in slices of some milliseconds.
TURN_SECONDS = 0.015
PRUNE_SECONDS = 30.0
ENERGY_SECONDS = 10.0
# How long the wall clock must run evenly before it decides the age of samples.
TRUST_SECONDS = 3600.0
JUMP_SECONDS = 60.0


@dataclass(slots=True)
class ClockTrust:
    """Detects jumps of the wall clock by comparison with the time since boot."""

    _offset: float | None = None
    _since: float = 0.0

    def check(self, wall: float, boot: float) -> bool:
        """Whether the wall clock has run evenly for TRUST_SECONDS. ``wall`` is UTC unix seconds, ``boot`` seconds since
        boot."""
        offset = wall - boot
        if self._offset is None or abs(offset - self._offset) > JUMP_SECONDS:
            self._since = boot
        self._offset = offset
        return boot - self._since >= TRUST_SECONDS


@dataclass(slots=True)
class HistoryRetention:
    """Keeps the hardware history within the limits in ``settings``, the machine's record.yaml. ``wall`` returns UTC
    unix seconds, ``clock`` monotonic seconds."""

    connection: sqlite3.Connection
    settings: Path
    recorder: Recorder
    wall: Callable[[], float]
    interval_seconds: float
    clock: Callable[[], float] = time.monotonic
    # Seconds since boot, including sleep. Unlike the wall clock it cannot be set: clock_gettime(2).
    boot: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    retention: Retention = field(default_factory=Retention)
    trust: ClockTrust = field(default_factory=ClockTrust)
    rollups: Rollups = field(init=False)
    pruning: Pruning = field(init=False)
    expiry: EventExpiry = field(init=False)
    _energy_at: float = 0.0
    _prune_at: float = 0.0
    _read: tuple[int, int, int] | None = None
    _is_too_large: bool = False
    _is_stuck: bool = False

    def __post_init__(self) -> None:
        self.rollups = Rollups(self.connection, self.interval_seconds, self.clock)
        self.pruning = Pruning(self.connection, self.clock)
        self.expiry = EventExpiry(self.connection, self.clock)

    def turn(self, now: float) -> None:
        """Do what is due; ``now`` is monotonic. On a full disk, log it once and try again in the next turn."""
        trusted = self.trust.check(self.wall(), self.boot())
        # Spans are rolled up only when all their samples are stored. Deletion goes on: it may make room.
        is_whole = not self.recorder.is_waiting
        deadline = self.clock() + TURN_SECONDS
        try:
            if is_whole:
                self.rollups.turn(self.wall(), deadline)
            if is_whole and now >= self._energy_at:
                self._energy_at = now + ENERGY_SECONDS
                run_energy.settle(self.connection, self.wall())
            if now >= self._prune_at:
                self._reload_settings()
                if trusted:
                    self.expiry.turn(self.retention.events_seconds, self.wall(), deadline)
                done = self.pruning.turn(self.retention, self.wall(), deadline, is_clock_trusted=trusted)
                if done:
                    self._prune_at = now + PRUNE_SECONDS
                    self._warn_if_too_large()
            self._is_stuck = False
        except sqlite3.OperationalError as error:
            if not self._is_stuck:
                log.warning("the record is not tidied until the database can be written: %s", error)
            self._is_stuck = True

    def _reload_settings(self) -> None:
        found = file_identity(self.settings)
        if found == self._read:
            return
        self._read = found
        # A machine without the file needs no YAML parser.
        from gputui.core.yaml_forms.problems import ProfileError
        from gputui.profiles.home_files import load_retention

        try:
            self.retention = load_retention(self.settings)
        except ProfileError as error:
            text = f"{error.problems[0]}; samples are kept as before"
            add_event(self.connection, "retention_unusable", text, now=self.wall(), severity="warning")

    def _warn_if_too_large(self) -> None:
        limit, used = self.retention.size_bytes, room(self.connection).used_bytes
        too_large = limit is not None and used > limit
        if too_large and not self._is_too_large:
            add_event(
                self.connection,
                "database_full",
                f"the database uses {bytes_text(used)} of {bytes_text(limit)} although all old samples are deleted; "
                "the metrics of runs take the rest: forget old runs with gputui rm, or raise size in record.yaml",
                now=self.wall(),
                severity="warning",
            )
        self._is_too_large = too_large
