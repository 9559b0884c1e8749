"""Processes of this home's runs that outlived their attempt: found by tag, ended by identity."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from gputui.machine.procfs import command_of, read_stat
from gputui.runs.identity import ProcessIdentity, is_alive, is_of_another_user, send_signal
from gputui.runs.processes import ProcessScanner
from gputui.store.run_states import RunState

TERM_SECONDS = 5.0  # enough to close files
KILL_SECONDS = 5.0  # the kernel frees memory meanwhile; what takes longer hangs
_PAUSE_SECONDS = 0.05


class MarkedProcess(Struct, frozen=True):
    """A living process of this user with the tag of one of this home's runs, or a descendant of one.

    ``attempt`` is None if the tag lacks it.
    """

    identity: ProcessIdentity
    run_id: str
    attempt: int | None
    command: str


class RunStatus(Struct, frozen=True):
    """A run's state and newest attempt (0 before the first)."""

    state: RunState
    attempt: int


def find_marked(runs: Path) -> list[MarkedProcess]:
    """This user's processes with the tag of a run in ``runs``, and their untagged descendants."""
    scan = ProcessScanner().scan()
    return [
        MarkedProcess(scan.identity(pid), owner.run_id, owner.attempt, command_of(pid))
        for pid, owner in scan.owned(runs).items()
        if not is_of_another_user(pid)
    ]


def orphans(processes: Sequence[MarkedProcess], runs: Mapping[str, RunStatus]) -> list[MarkedProcess]:
    """The processes whose attempt is over. ``runs`` must be read after the processes, so that an
    attempt that began in between has no orphans."""

    def is_over(process: MarkedProcess) -> bool:
        run = runs.get(process.run_id)
        attempt = process.attempt
        if run is None or run.state.is_over:
            return run is None or attempt is None or attempt <= run.attempt
        if attempt is None:
            return False
        return attempt < run.attempt or (not run.state.has_attempt and attempt == run.attempt)

    return [process for process in processes if is_over(process)]


def without_ancestors(processes: Sequence[MarkedProcess], pid: int) -> list[MarkedProcess]:
    """The processes without ``pid`` and its ancestors, whose end would end the calling command."""
    chain = set()
    while pid > 1 and pid not in chain:
        chain.add(pid)
        stat = read_stat(pid)
        pid = stat.parent_pid if stat is not None else 0
    return [process for process in processes if process.identity.pid not in chain]


def end(
    identities: Sequence[ProcessIdentity],
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> list[ProcessIdentity]:
    """Send SIGTERM, then SIGKILL. Returns the processes that survived both."""
    survivors = list(identities)
    for number, seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        for identity in survivors:
            send_signal(identity, number)
            if number is signal.SIGTERM:
                # A stopped process handles SIGTERM only when continued.
                send_signal(identity, signal.SIGCONT)
        deadline = clock() + seconds
        while (survivors := [identity for identity in survivors if is_alive(identity)]) and clock() < deadline:
            pause(_PAUSE_SECONDS)
        if not survivors:
            break
    return survivors
