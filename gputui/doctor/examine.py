"""Everything that `gputui doctor` looks at, in the order in which it is shown."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gputui.config import Workspace
from gputui.doctor.bandwidth import TORCHRUN_MODULE, free_gpus, judge_bandwidth, measure
from gputui.doctor.environment import judge_interpreter, judge_silence
from gputui.doctor.gpu_judgements import judge_driver, judge_gpus, judge_pcie, judge_persistence, judge_topology
from gputui.doctor.gpu_probe import GpuReading, read_gpus
from gputui.doctor.home_facts import read_home, read_leased, read_quarantine
from gputui.doctor.home_judgements import judge_home
from gputui.doctor.host_facts import read_host
from gputui.doctor.host_judgements import judge_host
from gputui.profiles.probe import InterpreterAnswer, ProbeError, ask_interpreter
from gputui.runs.checks import CheckResult


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python whose torch is asked about, and the environment and folder that it works in."""

    python: str
    environ: Mapping[str, str]
    workdir: str


def current_interpreter() -> Interpreter:
    """That of a run whose profile names none."""
    # It brings the forms of profiles along.
    from gputui.profiles.resolve import interpreter

    here = Path.cwd()
    return Interpreter(interpreter(None, str(here), here, os.environ), dict(os.environ), str(here))


def examine(
    workspace: Workspace, interpreter: Interpreter, now: float, *, bandwidth: bool = False
) -> list[CheckResult]:
    """Look at everything; ``now`` is in UTC unix seconds. The slow readings go on beside each other, and each has a
    deadline of its own. With ``bandwidth`` the free GPUs are measured too, after all else."""
    scenario = workspace.scenario if workspace.scenario.exists() else None
    with ThreadPoolExecutor(3) as pool:
        gpus_to_come = pool.submit(read_gpus, scenario)
        python_to_come = pool.submit(
            ask_interpreter, interpreter.python, interpreter.environ, interpreter.workdir, needed=(TORCHRUN_MODULE,)
        )
        home_to_come = pool.submit(read_home, workspace, now)
        host, held_back = read_host(), read_quarantine(workspace)
    gpus = gpus_to_come.result()
    answer: InterpreterAnswer | None = None
    try:
        answer = python_to_come.result()
        python_results = judge_interpreter(interpreter.python, answer, gpus)
    except ProbeError as error:
        python_results = [judge_silence(interpreter.python, error)]
    results = [
        judge_driver(gpus, has_hardware=host.nvidia_hardware),
        judge_gpus(gpus, held_back),
        judge_persistence(gpus),
        judge_pcie(gpus),
        judge_topology(gpus),
        *python_results,
        *judge_host(host),
        *judge_home(home_to_come.result()),
    ]
    if bandwidth:
        results += _bandwidth(workspace, interpreter, answer, gpus)
    return results


def _bandwidth(
    workspace: Workspace, interpreter: Interpreter, answer: InterpreterAnswer | None, gpus: GpuReading
) -> list[CheckResult]:
    if answer is None or answer.torch is None or answer.missing:
        return [CheckResult("bandwidth", "skip", f"{interpreter.python} has no torch to measure with")]
    places = free_gpus(gpus, read_leased(workspace))
    if places is not None and not places:
        return [CheckResult("bandwidth", "skip", "no GPU is free; ask again when nothing runs")]
    uuids = None if places is None else [gpus.facts[place].uuid for place in places]
    return judge_bandwidth(measure(interpreter.python, interpreter.environ, uuids), gpus, places)
