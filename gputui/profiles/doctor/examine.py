"""All checks of `gputui doctor`, in the order in which they are shown."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from gputui.core.config import Workspace
from gputui.profiles.doctor.bandwidth import TORCHRUN_MODULE, check_bandwidth, free_gpus, measure
from gputui.profiles.doctor.environment import check_interpreter, silent_interpreter
from gputui.profiles.doctor.gpus import GpuReading, check_gpus, has_nvidia_hardware, read_gpus
from gputui.profiles.doctor.home import check_home
from gputui.profiles.doctor.host import check_host
from gputui.profiles.probe import InterpreterAnswer, ProbeError, ask_interpreter
from gputui.runs.checks import CheckResult
from gputui.store import hardware
from gputui.store.database import StoreError, open_reader


class Interpreter(Struct, frozen=True):
    """The Python whose torch is checked, with its environment and folder."""

    python: str
    environ: Mapping[str, str]
    workdir: str


def current_interpreter() -> Interpreter:
    """The interpreter of a run whose profile names none."""
    # Imported here, because it imports pydantic.
    from gputui.profiles.resolve import interpreter

    here = Path.cwd()
    return Interpreter(interpreter(None, str(here), here, os.environ), dict(os.environ), str(here))


def examine(
    workspace: Workspace, interpreter: Interpreter, now: float, *, bandwidth: bool = False
) -> list[CheckResult]:
    """Run all checks; ``now`` is UTC unix seconds. The slow readings run in parallel, each with a deadline. With
    ``bandwidth`` the free GPUs are measured at the end."""
    scenario = workspace.scenario if workspace.scenario.exists() else None
    with ThreadPoolExecutor(3) as pool:
        gpus_future = pool.submit(read_gpus, scenario)
        python_future = pool.submit(
            ask_interpreter, interpreter.python, interpreter.environ, interpreter.workdir, needed=(TORCHRUN_MODULE,)
        )
        home_future = pool.submit(check_home, workspace, now)
        host = check_host()
        quarantined, leased = _quarantined_and_leased(workspace)
    gpus = gpus_future.result()
    answer: InterpreterAnswer | None = None
    try:
        answer = python_future.result()
        python_results = check_interpreter(interpreter.python, answer, gpus)
    except ProbeError as error:
        python_results = [silent_interpreter(interpreter.python, error)]
    results = [
        *check_gpus(gpus, quarantined, has_hardware=has_nvidia_hardware()),
        *python_results,
        *host,
        *home_future.result(),
    ]
    return [*results, *_bandwidth(interpreter, answer, gpus, leased)] if bandwidth else results


def _bandwidth(
    interpreter: Interpreter, answer: InterpreterAnswer | None, gpus: GpuReading, leased: list[str]
) -> list[CheckResult]:
    if answer is None or answer.torch is None or answer.missing:
        return [CheckResult("bandwidth", "skip", f"{interpreter.python} has no torch to measure with")]
    free = free_gpus(gpus, leased)
    if free is not None and not free:
        return [CheckResult("bandwidth", "skip", "no GPU is free; ask again when nothing runs")]
    uuids = None if free is None else [gpus.facts[number].uuid for number in free]
    return check_bandwidth(measure(interpreter.python, interpreter.environ, uuids), gpus, free)


def _quarantined_and_leased(workspace: Workspace) -> tuple[dict[str, str], list[str]]:
    """GPUs out of service (UUID → reason), and UUIDs that runs of this home hold. Both are empty if the database is
    missing or unreadable, which another check reports."""
    try:
        with closing(open_reader(workspace.database)) as connection:
            out = {uuid: one.reason for uuid, one in hardware.quarantined(connection).items()}
            return out, [gpu.uuid for gpu in hardware.read_gpus(connection, time.time()) if gpu.run_id is not None]
    except (StoreError, sqlite3.Error):
        return {}, []
