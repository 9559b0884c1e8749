"""All checks of `gputui doctor`, in the order in which they are shown."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from gputui.core.config import Workspace
from gputui.profiles.doctor.bandwidth import TORCHRUN_MODULE, check_bandwidth, free_gpus, measure
from gputui.profiles.doctor.gpus import GpuReading, NotedGpus, check_gpus, has_nvidia_hardware, read_gpus
from gputui.profiles.doctor.home import check_home
from gputui.profiles.doctor.host import check_host
from gputui.profiles.probe import InterpreterAnswer, ProbeError, ask_interpreter
from gputui.runs.checks import CheckResult
from gputui.runs.gpu_locks import GpuLocks
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
    from gputui.profiles.resolve import shell_interpreter

    here = Path.cwd()
    return Interpreter(shell_interpreter(os.environ).path, dict(os.environ), str(here))


def examine(
    workspace: Workspace, interpreter: Interpreter, now: float, *, bandwidth: bool = False, is_readonly: bool = False
) -> list[CheckResult]:
    """Run all checks. The slow readings run in parallel, each with a deadline.

    Args:
        now: UTC unix seconds.
        bandwidth: Measure the free GPUs at the end.
        is_readonly: The home is not written to.
    """
    scenario = workspace.scenario if workspace.scenario.exists() else None
    with ThreadPoolExecutor(3) as pool:
        gpus_future = pool.submit(read_gpus, scenario)
        python_future = pool.submit(
            ask_interpreter, interpreter.python, interpreter.environ, interpreter.workdir, needed=(TORCHRUN_MODULE,)
        )
        home_future = pool.submit(check_home, workspace, now, is_readonly=is_readonly)
        host = check_host()
        noted = _noted_gpus(workspace)
    gpus = gpus_future.result()
    answer: InterpreterAnswer | None = None
    try:
        answer = python_future.result()
        python_results = check_interpreter(interpreter.python, answer, gpus)
    except ProbeError as error:
        remedy = "name a profile whose python: is the training environment's interpreter"
        python_results = [CheckResult("interpreter", "fail", f"{interpreter.python} {error}", remedy)]
    results = [
        *check_gpus(gpus, noted, has_hardware=has_nvidia_hardware()),
        *python_results,
        *host,
        *home_future.result(),
    ]
    if not bandwidth:
        return results
    return [*results, *_bandwidth(interpreter, answer, gpus, held_gpus(workspace, gpus, noted.leased))]


def held_gpus(workspace: Workspace, gpus: GpuReading, leased: Sequence[str]) -> list[str]:
    """The UUIDs of the GPUs that runs of this home, of another one or of another user have."""
    locks = GpuLocks.of(workspace)
    return [gpu.uuid for gpu in gpus.facts if gpu.uuid in leased or locks.holder(gpu.uuid) is not None]


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


def _noted_gpus(workspace: Workspace) -> NotedGpus:
    """What the database says of GPUs; nothing if it is missing or unreadable, which another check
    reports."""
    try:
        with closing(open_reader(workspace.database)) as connection:
            failed = {uuid: quarantined.words for uuid, quarantined in hardware.quarantined(connection).items()}
            leased = [gpu.uuid for gpu in hardware.read_gpus(connection, time.time()) if gpu.run_id is not None]
            return NotedGpus(failed, leased, hardware.excluded(connection))
    except (StoreError, sqlite3.Error):
        return NotedGpus()


def check_interpreter(python: str, answer: InterpreterAnswer, reading: GpuReading) -> list[CheckResult]:
    """Check the packages of an interpreter, and whether the GPUs' driver supports them."""
    results = [CheckResult("interpreter", "pass", f"Python {answer.python} at {python}")]
    if answer.torch is None:
        remedy = "name a profile (gputui doctor PROFILE), or install torch there"
        return [*results, CheckResult("torch", "warn", f"{python} has no torch", remedy)]
    real = reading.source == "nvml" and bool(reading.facts)
    return [*results, _cuda(answer.torch, answer.cuda, reading.cuda, real), _nccl(answer, real)]


def _cuda(torch: str, built_for: str | None, driver: tuple[int, int] | None, has_gpus: bool) -> CheckResult:
    """CUDA of a newer major version than the driver's does not start; a newer minor one does, since
    CUDA 11: https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html."""
    if built_for is None:
        detail = f"torch {torch} without CUDA"
        if has_gpus:
            return CheckResult("torch", "fail", detail, "install a build of torch with CUDA there")
        return CheckResult("torch", "pass", f"{detail}; there is no GPU that it could use")
    detail = f"torch {torch} built for CUDA {built_for}"
    needed = version_of(built_for)
    if driver is None or needed is None:
        return CheckResult("torch", "pass", detail)
    newest = f"{driver[0]}.{driver[1]}"
    if needed[0] > driver[0]:
        remedy = f"update the driver, or install torch built for CUDA {driver[0]}"
        return CheckResult("torch", "fail", f"{detail}, the driver supports up to {newest}", remedy)
    if needed > driver:
        remedy = "code compiled at run time may fail: update the driver if it does"
        return CheckResult("torch", "warn", f"{detail}, newer than the driver's {newest}, of the same major", remedy)
    return CheckResult("torch", "pass", f"{detail}, the driver supports up to {newest}")


def _nccl(answer: InterpreterAnswer, has_gpus: bool) -> CheckResult:
    if answer.cuda is None:
        return CheckResult("nccl", "skip", "comes with a torch built for CUDA")
    if answer.nccl is None:
        return CheckResult("nccl", "skip", "its version is not written down (built into torch)")
    detail = f"NCCL {answer.nccl} for CUDA {answer.cuda.split('.')[0]}"
    if not has_gpus:
        detail += "; no GPU to use it with"
    return CheckResult("nccl", "pass", detail)


def version_of(text: str) -> tuple[int, int] | None:
    """The first two numbers of a version, or None."""
    match = re.match(r"(\d+)(?:\.(\d+))?", text)
    if match is None:
        return None
    return (int(match[1]), int(match[2] or 0))
