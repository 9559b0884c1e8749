"""Processes of every kind that are killed, or stopped and continued."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Callable

import pexpect

from gputui.runs.identity import ProcessIdentity, identify, is_alive, send_signal
from tests.machines import Machine

# Longer than a command waits for its answer: one that was reported as refused must not be carried out later.
LONG_STOP_SECONDS = 26.0
LONG_STOP_CHANCE = 0.12


class Victims:
    """``live`` gives the runs that are not over."""

    def __init__(self, machine: Machine, chance: random.Random, live: Callable[[], list[str]]) -> None:
        self.machine = machine
        self.chance = chance
        self.live = live
        self.stopped: list[tuple[float, ProcessIdentity]] = []
        self.screen: pexpect.spawn | None = None

    def strike(self) -> str | None:
        """Kill or stop one of them; what was done, None where there was none."""
        victims: dict[str, Callable[[], ProcessIdentity | None]] = {
            "worker": self.a_worker,
            "launcher": self.a_launcher,
            "shim": self.a_shim,
            "agent": self.machine.agent,
            "screen": self.the_screen,
        }
        kind = self.chance.choice(sorted(victims))
        victim = victims[kind]()
        if victim is None:
            return None
        if self.chance.random() < 0.5:
            send_signal(victim, signal.SIGKILL)
            return f"{kind} killed"
        if not send_signal(victim, signal.SIGSTOP):
            return None
        is_long = kind == "agent" and self.chance.random() < LONG_STOP_CHANCE
        seconds = LONG_STOP_SECONDS if is_long else self.chance.uniform(0.1, 1.5)
        self.stopped.append((time.monotonic() + seconds, victim))
        return f"{kind} stopped {'for long ' if is_long else ''}and continued"

    def turn(self) -> None:
        """Continue what was stopped when its time has come."""
        for entry in [entry for entry in self.stopped if entry[0] <= time.monotonic()]:
            send_signal(entry[1], signal.SIGCONT)
            self.stopped.remove(entry)

    def release(self) -> None:
        """Continue all that were stopped, and end the screen."""
        for _, identity in self.stopped:
            send_signal(identity, signal.SIGCONT)
        self.stopped.clear()
        self.close_screen()

    # --- whom it hits -------------------------------------------------------------------------------------------------

    def a_worker(self) -> ProcessIdentity | None:
        ranks = [pid for run_id in self.live() for pid in self.machine.ranks(run_id).values()]
        return identify(self.chance.choice(ranks)) if ranks else None

    def a_launcher(self) -> ProcessIdentity | None:
        folders = (self.machine.workspace.run_dir(run_id) / "attempts" for run_id in self.live())
        records = [json.loads(path.read_text()) for folder in folders for path in folder.glob("*/started.json")]
        alive = [
            identity
            for record in records
            if is_alive(identity := ProcessIdentity(record["pid"], record["start_ticks"], record["boot_id"]))
        ]
        return self.chance.choice(alive) if alive else None

    def a_shim(self) -> ProcessIdentity | None:
        sql = "SELECT shim_pid, shim_start_ticks, boot_id FROM attempts WHERE shim_pid IS NOT NULL AND ended_at IS NULL"
        try:
            rows = self.machine.rows(sql)
        except sqlite3.OperationalError:
            return None
        alive = [identity for row in rows if is_alive(identity := ProcessIdentity(*row))]
        return self.chance.choice(alive) if alive else None

    def the_screen(self) -> ProcessIdentity | None:
        if self.screen is None or not self.screen.isalive():
            self.close_screen()
            arguments = ["-m", "gputui", "--home", str(self.machine.folder / "home")]
            environment = {**os.environ, "TERM": "xterm-256color"}
            self.screen = pexpect.spawn(sys.executable, arguments, dimensions=(30, 100), env=environment)
        return identify(self.screen.pid)

    def close_screen(self) -> None:
        if self.screen is not None:
            self.screen.close(force=True)
            self.screen = None
