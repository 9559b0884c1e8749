"""Processes of this home's runs that outlived their attempt: found by their tag, classified by the database,
ended only when proven ours."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gputui.redaction import redact_command_line
from gputui.runs import shim
from gputui.runs.attempt_processes import is_tagged
from gputui.runs.identity import (
    ProcessIdentity,
    all_pids,
    environment_of,
    identify,
    is_alive,
    raw_environment,
    read_stat,
    send_signal,
)
from gputui.store.run_states import RunState

TERM_SECONDS = 5.0
KILL_SECONDS = 5.0
_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class MarkedProcess:
    """A living process of this user that carries the tag of one of this home's runs, or hangs below one that does.
    ``attempt`` is None if the tag does not tell it."""

    identity: ProcessIdentity
    run_id: str
    attempt: int | None
    command: str


@dataclass(frozen=True, slots=True)
class RunStanding:
    """What the database says of a run: its state, and its newest attempt (0 before the first)."""

    state: RunState
    attempt: int


def find_marked(runs: Path) -> list[MarkedProcess]:
    """Every such process of the runs in the folder ``runs``, and what hangs below one without its own tag."""
    needle = b"\0GPUTUI_RUN_DIR=" + os.fsencode(runs) + b"/"
    found: dict[int, MarkedProcess] = {}
    for pid in all_pids():
        # Nearly all processes are not ours: what is dear is asked of those that may be.
        if needle not in (raw_environment(pid) or b""):
            continue
        identity = identify(pid)
        environment = None if identity is None else environment_of(pid)
        run_id = (environment or {}).get("GPUTUI_RUN_ID")
        if identity is None or environment is None or not run_id or not _is_own(pid):
            continue
        if environment.get("GPUTUI_RUN_DIR") != f"{runs}/{run_id}" or not is_alive(identity):
            continue
        if shim.has_another_folder(pid, os.fsencode(f"{runs}/{run_id}")):
            continue
        number = environment.get("GPUTUI_ATTEMPT", "")
        attempt = int(number) if number.isascii() and number.isdigit() else None
        found[pid] = MarkedProcess(identity, run_id, attempt, _command(pid))
    children = _children() if found else {}
    for one in list(found.values()):
        for pid in shim.below({one.identity.pid}, children, lambda pid: is_tagged(environment_of(pid) or {}, runs)):
            identity = identify(pid)
            if identity is not None and _is_own(pid):
                found[pid] = replace(one, identity=identity, command=_command(pid))
    return list(found.values())


def _children() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for pid in all_pids():
        stat = read_stat(pid)
        if stat is not None and not stat.is_dead:
            children.setdefault(stat.parent_pid, []).append(pid)
    return children


def orphans(processes: Sequence[MarkedProcess], runs: Mapping[str, RunStanding]) -> list[MarkedProcess]:
    """Those whose attempt is over. ``runs`` must have been read after the processes were: an attempt that has begun
    meanwhile is then no orphan."""
    return [process for process in processes if _is_over(process, runs.get(process.run_id))]


def _is_over(process: MarkedProcess, run: RunStanding | None) -> bool:
    if run is None or run.state.is_over:
        return run is None or process.attempt is None or process.attempt <= run.attempt
    if process.attempt is None:
        return False
    return process.attempt < run.attempt or (not run.state.has_attempt and process.attempt == run.attempt)


def without_ancestors(processes: Sequence[MarkedProcess], pid: int) -> list[MarkedProcess]:
    """All but ``pid`` and what it was started from: ending these would end the command itself."""
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
    """Ask them to end, then kill them. Returns those that not even SIGKILL ended."""
    left = list(identities)
    for number, seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        for identity in left:
            send_signal(identity, number)
            if number is signal.SIGTERM:
                # A stopped process notices nothing.
                send_signal(identity, signal.SIGCONT)
        deadline = clock() + seconds
        while (left := [identity for identity in left if is_alive(identity)]) and clock() < deadline:
            pause(_PAUSE_SECONDS)
        if not left:
            break
    return left


def _is_own(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}").stat().st_uid == os.getuid()
    except OSError:
        return False


def _command(pid: int) -> str:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return redact_command_line(raw)
