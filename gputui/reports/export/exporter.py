"""`python -m gputui.reports.export.exporter`: the process that writes the sinks of all runs of a
home, started by the agent when a run has sinks.

A thread per sink, so that one that hangs or whose server is down holds up no other. The process is
crash-only: cursors are in the store, and problems in the run's events. It ends with code 0 when
nothing is left to write. Targets come from the runs' private specifications, because they may
contain a password, which must not be on a command line.
"""

from __future__ import annotations

import argparse
import logging
import os
import sqlite3
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from gputui.core.config import Workspace
from gputui.core.redaction import redact_text
from gputui.reports.export.files import cannot_write
from gputui.reports.export.follow import Follower, is_complete
from gputui.reports.export.formats import FORMATS, absolute_target, is_format
from gputui.reports.export.sink import ExportError
from gputui.reports.export.subject import read_subject
from gputui.runs import identity
from gputui.runs.command import sink_target
from gputui.runs.spec import RunSpec, SpecError
from gputui.runs.submission import SPEC_FILE, read_spec
from gputui.store.database import StoreError, open_commander
from gputui.store.events import SINK_KINDS, EventKind, NewEvent, Severity, add_event, last_kind
from gputui.store.metrics.exported import read_cursor, runs_with_sinks
from gputui.store.run_states import RunState
from gputui.store.runs import RunLookupError, get_run

log = logging.getLogger(__name__)

RETRY_SECONDS = (2.0, 5.0, 15.0, 60.0, 300.0)
"""Delays before a sink begins again, by the number of consecutive failures."""
PATIENCE_SECONDS = 900.0
"""How long a sink may write nothing after the run's end before it is given up, and how long a write
may take before it is reported."""
RECENT_SECONDS = 7 * 86400.0
"""Sinks of runs that ended within this time are completed."""
LINGER_SECONDS = 5.0
TURN_SECONDS = 2.0
LOCK_FILE = "exporter.lock"
LOG_FILE = "exporter.log"
EXIT_OK = 0
EXIT_FAILED = 3
# Of 1000: the kernel kills this process before any training.
_OOM_SCORE = b"800"
_NICE = 10  # an export may lag; the trainings come first


class GivenUpError(Exception):
    """The sink is not needed any more."""


@dataclass(slots=True)
class SinkStatus:
    """A problem of a sink, and the run's events about it.

    ``last_event`` is the newest event if it reports a problem, with its time (UTC unix seconds).
    """

    follower: Follower
    last_event: tuple[str, float] | None = None
    problem: str = ""

    def note(self, problem: str) -> None:
        """Report a problem, once until it ends."""
        self.problem = problem
        log.warning("%s: sink %s: %s", self.follower.run_id, self.follower.name, problem)
        if self.last_event is not None:
            self.last_event = (self.last_event[0], time.time())
        elif self._add_event("sink_failed", f"{problem}; the run continues; retrying", "warning"):
            self.last_event = ("sink_failed", time.time())

    def end(self, written_at: float) -> None:
        """Report once that the sink is written again."""
        if self.last_event is None:
            self.problem = ""
        elif written_at > self.last_event[1] and self._add_event(
            "sink_recovered", "is written again; nothing is missing", "info"
        ):
            self.last_event = None
            self.problem = ""

    def give_up(self) -> None:
        """Report that the sink stays incomplete."""
        why = self.problem or "it gets nothing written"
        run_id = self.follower.run_id
        text = f"is not complete: {why}; given up until the next agent, or gputui export {run_id}"
        if self.last_event is None or self.last_event[0] != "sink_incomplete":
            self._add_event("sink_incomplete", text, "error")

    def _add_event(self, kind: EventKind, text: str, severity: Severity) -> bool:
        """Add an event, unless the newest is of this kind, or the run is gone. Return False if the
        database cannot be written."""
        run_id = self.follower.run_id
        name = self.follower.name
        database = self.follower.workspace.database
        try:
            with closing(open_commander(database)) as connection:
                last = last_kind(connection, run_id, SINK_KINDS, name)
                if (last is None or last[0] != kind) and get_run(connection, run_id) is not None:
                    text = f"sink {name}: {text}"
                    now = time.time()
                    add_event(connection, NewEvent(kind, text, key=name, severity=severity, run_id=run_id), now=now)
        except (StoreError, sqlite3.Error) as error:
            log.warning("%s: not reported: %s", run_id, error)
            return False
        return True


@dataclass(slots=True)
class LiveSink:
    """A sink of a run, written by a thread of its own; the exporter's loop only calls `check`. Times are monotonic.

    Attributes:
        failures: In a row.
        progress_at: When it was last written.
        busy_since: The begin of a write that has not ended, None between two.
        is_over: The thread has ended, because nothing is left to write.
        is_given_up: Nothing was written for too long after the run.
    """

    follower: Follower
    status: SinkStatus
    failures: int = 0
    progress_at: float = field(default_factory=time.monotonic)
    busy_since: float | None = None
    is_over: bool = False
    is_given_up: bool = False

    def start(self) -> None:
        self.follower.wait = self._wait
        self.follower.on_write = self._note_progress
        name = f"{self.follower.name} of {self.follower.run_id}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while not self.is_given_up:
            self.busy_since = time.monotonic()
            try:
                self.follower.run()
                break
            except GivenUpError:
                return
            except Exception as error:
                # A tracker's library may raise anything.
                self.status.note(_problem_text(error, self.follower.target))
            self.failures += 1
            time.sleep(RETRY_SECONDS[min(self.failures, len(RETRY_SECONDS)) - 1])
        self.is_over = True

    def _wait(self, seconds: float) -> None:
        self.busy_since = None
        time.sleep(seconds)
        self._end_if_given_up()
        self.busy_since = time.monotonic()

    def _note_progress(self, at: float) -> None:
        self.failures = 0
        self.progress_at = time.monotonic()
        self.busy_since = self.progress_at
        self.status.end(at)
        self._end_if_given_up()

    def _end_if_given_up(self) -> None:
        if self.is_given_up:
            raise GivenUpError

    def check(self, now: float, over_at: float | None) -> bool:
        """Report a write that hangs, and give the sink up if it writes nothing for too long after its run.

        Args:
            now: Monotonic seconds.
            over_at: When the run's end was noticed, None while it goes on.

        Returns:
            Whether it was given up.
        """
        is_hanging = self.busy_since is not None and now - self.busy_since > PATIENCE_SECONDS
        if is_hanging and not self.status.problem:
            self.status.note(f"a write did not end within {PATIENCE_SECONDS / 60:.0f} minutes")
        if over_at is None or now - max(over_at, self.progress_at) <= PATIENCE_SECONDS:
            return False
        self.is_given_up = True
        self.status.give_up()
        return True


@dataclass(slots=True)
class Exporter:
    """The sinks of one home, by run and format. ``over_at``: when a run's end was noticed."""

    workspace: Workspace
    connection: sqlite3.Connection
    sinks: dict[tuple[str, str], LiveSink] = field(default_factory=dict)
    over_at: dict[str, float] = field(default_factory=dict)
    newest_transition: int = 0

    def run(self) -> None:
        """Write until nothing is left, or the database is replaced. Raises sqlite3.Error."""
        database = self.workspace.database
        inode = self.workspace.database.stat().st_ino
        idle_since = time.monotonic()
        while database.exists() and database.stat().st_ino == inode:
            if self.turn(time.monotonic()):
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > LINGER_SECONDS:
                return
            time.sleep(TURN_SECONDS)

    def turn(self, now: float) -> bool:
        """Start sinks that are due and look after those that run. Return whether any does."""
        recent = time.time() - RECENT_SECONDS
        self.newest_transition, changed = runs_with_sinks(self.connection, self.newest_transition, recent)
        for run_id in changed:
            self._add(run_id)
        for (run_id, name), sink in list(self.sinks.items()):
            if sink.is_over:
                del self.sinks[run_id, name]
                self._add(run_id)  # it may have been resumed meanwhile
            elif sink.check(now, self._over_since(run_id, now)):
                del self.sinks[run_id, name]
        return bool(self.sinks)

    def _over_since(self, run_id: str, now: float) -> float | None:
        query = "SELECT state FROM runs WHERE run_id = ?"
        row = self.connection.execute(query, (run_id,)).fetchone()
        if row is not None and not RunState(row[0]).is_over:
            self.over_at.pop(run_id, None)
            return None
        return self.over_at.setdefault(run_id, now)

    def _add(self, run_id: str) -> None:
        """Start the incomplete sinks of a run."""
        run_dir = self.workspace.run_dir(run_id)
        try:
            # The private specification: a target in the database may be redacted.
            spec = read_spec(run_dir / SPEC_FILE)
        except SpecError as error:
            log.warning("%s: its sinks are not written: %s", run_id, error)
            return
        for name, template in spec.sinks.items():
            if (run_id, name) in self.sinks or not is_format(name):
                continue
            target = sink_target(template, spec.params, run_id=run_id, run_dir=str(run_dir))
            target = absolute_target(name, target, Path("/"))
            try:
                key = read_subject(self.connection, run_id, name, target).key
            except RunLookupError:
                return
            cursor = read_cursor(self.connection, run_id, key)
            if cursor is None or not is_complete(self.connection, run_id, cursor):
                environment = _environment(spec, FORMATS[name].environment)
                follower = Follower(self.workspace, run_id, name, target, environment=environment, is_sink=True)
                last = last_kind(self.connection, run_id, SINK_KINDS, name)
                is_solved = last is None or last[0] == "sink_recovered"
                problem = None if is_solved else last
                status = SinkStatus(follower, problem)
                sink = self.sinks[run_id, name] = LiveSink(follower, status)
                sink.start()


def _environment(spec: RunSpec, prefix: str) -> dict[str, str]:
    """A tracking server's settings, from the profile or the launching shell."""
    settings = spec.env
    if spec.shell is not None:
        settings = {**spec.shell.environment, **settings}
    return {name: text for name, text in settings.items() if prefix and name.startswith(prefix)}


def _problem_text(error: Exception, target: str) -> str:
    """A problem in one line."""
    if isinstance(error, identity.HeldElsewhereError):
        return f"another process holds {error}"
    if isinstance(error, OSError):
        text = str(cannot_write(Path(error.filename or target), error))
    elif isinstance(error, ExportError | StoreError | sqlite3.Error):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error}"
    return redact_text(" ".join(text.split()))[:500]


def main() -> int:
    parser = argparse.ArgumentParser(prog="gputui.reports.export.exporter", description="All sinks.")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--tell", type=int, required=True, help="descriptor for the error")
    arguments = parser.parse_args()
    os.nice(_NICE)
    with suppress(OSError):  # not allowed everywhere
        Path("/proc/self/oom_score_adj").write_bytes(_OOM_SCORE)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    workspace = Workspace(profiles=arguments.state, state=arguments.state)
    try:
        lock = identity.take(workspace.state / LOCK_FILE, is_agents=True)
    except identity.HeldElsewhereError:
        return EXIT_OK
    try:
        with closing(open_commander(workspace.database)) as connection:
            Exporter(workspace, connection).run()
    except (StoreError, sqlite3.Error, OSError) as error:
        # If the agent is gone, the next one gets the same error.
        with suppress(OSError):
            os.write(arguments.tell, _problem_text(error, str(workspace.state)).encode()[:4096])
        return EXIT_FAILED
    finally:
        os.close(lock)
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
