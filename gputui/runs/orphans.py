"""Processes of this home's runs that outlived their attempt: found by tag, classified by the database, and ended by
identity."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.redaction import redact_command_line
from gputui.runs import shim
from gputui.runs.attempt_processes import is_tagged
from gputui.runs.identity import (
    ProcessIdentity,
    all_pids,
    environment_of,
    identify,
    is_alive,
    names_folder,
    raw_environment,
    read_stat,
    send_signal,
)
from gputui.store.run_states import RunState

TERM_SECONDS = 5.0
KILL_SECONDS = 5.0
_PAUSE_SECONDS = 0.05


class MarkedProcess(Struct, frozen=True):
    """A living process of this user with the tag of one of this home's runs, or a descendant of one. ``attempt`` is
    None if the tag lacks it."""

    identity: ProcessIdentity
    run_id: str
    attempt: int | None
    command: str


class RunStatus(Struct, frozen=True):
    """A run's state and newest attempt (0 before the first)."""

    state: RunState
    attempt: int


def find_marked(runs: Path) -> list[MarkedProcess]:
    """Every tagged process of the runs in the folder ``runs``, and their descendants without a tag."""
    needle = b"\0GPUTUI_RUN_DIR="
    found: dict[int, MarkedProcess] = {}
    for pid in all_pids():
        # Nearly all processes are untagged: only the rest is worth the costly checks.
        if needle not in (raw_environment(pid) or b""):
            continue
        identity = identify(pid)
        environment = None if identity is None else environment_of(pid)
        run_id = (environment or {}).get("GPUTUI_RUN_ID")
        if identity is None or environment is None or not run_id or not _is_own(pid):
            continue
        if not names_folder(pid, environment.get("GPUTUI_RUN_DIR"), f"{runs}/{run_id}") or not is_alive(identity):
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


def orphans(processes: Sequence[MarkedProcess], runs: Mapping[str, RunStatus]) -> list[MarkedProcess]:
    """The processes whose attempt is over. ``runs`` must be read after the processes, so that an attempt that began in
    between has no orphans."""
    return [process for process in processes if _is_over(process, runs.get(process.run_id))]


def _is_over(process: MarkedProcess, run: RunStatus | None) -> bool:
    if run is None or run.state.is_over:
        return run is None or process.attempt is None or process.attempt <= run.attempt
    if process.attempt is None:
        return False
    return process.attempt < run.attempt or (not run.state.has_attempt and process.attempt == run.attempt)


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
    left = list(identities)
    for number, seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        for identity in left:
            send_signal(identity, number)
            if number is signal.SIGTERM:
                # A stopped process handles SIGTERM only when continued.
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
