"""All checks of `gputui doctor`, in the order in which they are shown."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct

from gputui.core.config import Workspace
from gputui.profiles.doctor.bandwidth import TORCHRUN_MODULE, free_gpus, judge_bandwidth, measure
from gputui.profiles.doctor.environment import judge_interpreter, judge_silence
from gputui.profiles.doctor.gpu_judgements import (
    judge_driver,
    judge_gpus,
    judge_pcie,
    judge_persistence,
    judge_topology,
)
from gputui.profiles.doctor.gpu_probe import GpuReading, read_gpus
from gputui.profiles.doctor.home_facts import read_home, read_leased, read_quarantine
from gputui.profiles.doctor.home_judgements import judge_home
from gputui.profiles.doctor.host_facts import read_host
from gputui.profiles.doctor.host_judgements import judge_host
from gputui.profiles.probe import InterpreterAnswer, ProbeError, ask_interpreter
from gputui.runs.checks import CheckResult


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
        home_future = pool.submit(read_home, workspace, now)
        host, quarantined = read_host(), read_quarantine(workspace)
    gpus = gpus_future.result()
    answer: InterpreterAnswer | None = None
    try:
        answer = python_future.result()
        python_results = judge_interpreter(interpreter.python, answer, gpus)
    except ProbeError as error:
        python_results = [judge_silence(interpreter.python, error)]
    results = [
        judge_driver(gpus, has_hardware=host.nvidia_hardware),
        judge_gpus(gpus, quarantined),
        judge_persistence(gpus),
        judge_pcie(gpus),
        judge_topology(gpus),
        *python_results,
        *judge_host(host),
        *judge_home(home_future.result()),
    ]
    if bandwidth:
        results += _bandwidth(workspace, interpreter, answer, gpus)
    return results


def _bandwidth(
    workspace: Workspace, interpreter: Interpreter, answer: InterpreterAnswer | None, gpus: GpuReading
) -> list[CheckResult]:
    if answer is None or answer.torch is None or answer.missing:
        return [CheckResult("bandwidth", "skip", f"{interpreter.python} has no torch to measure with")]
    free = free_gpus(gpus, read_leased(workspace))
    if free is not None and not free:
        return [CheckResult("bandwidth", "skip", "no GPU is free; ask again when nothing runs")]
    uuids = None if free is None else [gpus.facts[number].uuid for number in free]
    return judge_bandwidth(measure(interpreter.python, interpreter.environ, uuids), gpus, free)
