"""Checks that ask the interpreter of a run (`gputui.profiles.probe`)."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from gputui.profiles.probe import DEADLINE_SECONDS, InterpreterAnswer, ProbeError, ask_interpreter
from gputui.runs.checks import CheckResult, graded
from gputui.runs.command import substitute, values_for
from gputui.runs.launch_shell import passed_on
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.launchers.base import RANK_OUTPUT
from gputui.runs.spec import RunSpec

# torchrun before torch 2.12 has no setting for how long ranks have between SIGTERM and SIGKILL.
GRACE_SINCE = (2, 12)
GRACE_BEFORE_SECONDS = 30  # torchrun's own, before it could be set


def check_interpreter(
    spec: RunSpec,
    environ: Mapping[str, str],
    *,
    simulated_gpus: bool = False,
    deadline_seconds: float = DEADLINE_SECONDS,
) -> list[CheckResult]:
    """Check that the interpreter runs, has the modules of the launcher and finds the module of the run.

    Starts one process and waits for it.

    Args:
        simulated_gpus: A torch without CUDA passes, because the processes then run on the CPU.
        deadline_seconds: How long to wait at most.
    """
    if spec.python is None:
        return [CheckResult("interpreter", "skip", f"launcher {spec.launcher} names its own program")]
    module = spec.program[1] if spec.program[0] == "-m" else ""
    needed = [name for name, _ in LAUNCHERS[spec.launcher].modules]
    try:
        answer = ask_interpreter(
            spec.python,
            environment_of(spec, environ),
            spec.workdir,
            module=module,
            deadline_seconds=deadline_seconds,
            needed=needed,
        )
    except ProbeError as error:
        return [CheckResult("interpreter", "fail", f"{spec.python} {error}", other_interpreter(spec))]
    results = [chosen_interpreter(spec, f"Python {answer.python} at ")]
    results.append(_torch(spec, answer, simulated_gpus))
    results += _launcher(spec, answer)
    results += _grace(spec, answer)
    if module:
        results.append(_module(spec, module, answer))
    return results


def chosen_interpreter(spec: RunSpec, version: str = "") -> CheckResult:
    """The interpreter that was taken, and why; a warning where nobody chose it."""
    remedy = f"activate the training's environment, or {other_interpreter(spec)}"
    detail = f"{version}{spec.python_words or spec.python}"
    return graded("interpreter", detail, remedy, warns=spec.python_origin == "gputui")


def other_interpreter(spec: RunSpec) -> str:
    """The remedy for an interpreter that is not the training's."""
    if spec.typed:
        return "name the training environment's python in the command"
    return "set python: in the profile to the training environment's interpreter"


def environment_of(spec: RunSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a run: what the shell ``environ`` passes on and the profile adds."""
    values = values_for(spec.params, "/nowhere", checkpoint=None)
    return {**passed_on(environ), **{name: substitute(text, values) for name, text in spec.env.items()}}


def _torch(spec: RunSpec, answer: InterpreterAnswer, simulated_gpus: bool) -> CheckResult:
    needs_torch = bool(LAUNCHERS[spec.launcher].modules)
    if answer.torch is None and not needs_torch:
        return CheckResult("torch", "skip", f"not installed there, and launcher {spec.launcher} does not need it")
    if answer.torch is None:
        package = "'gputui[train]'" if spec.python == sys.executable else "torch"
        remedy = f"install it there ({spec.python} -m pip install {package}), or {other_interpreter(spec)}"
        return CheckResult("torch", "fail", f"{spec.python} has no torch, which launcher {spec.launcher} needs", remedy)
    build = f"torch {answer.torch} without CUDA"
    if answer.cuda:
        build = f"torch {answer.torch} built for CUDA {answer.cuda}"
    if spec.gpus.count and simulated_gpus:
        return CheckResult("torch", "pass", f"{build}; the GPUs are simulated, the processes work on the CPU")
    if answer.cuda or not spec.gpus.count:
        return CheckResult("torch", "pass", build)
    if not needs_torch:
        return CheckResult("torch", "warn", f"{build}; if the program uses torch, it works on the CPU")
    remedy = "install a build of torch with CUDA there, or use --gpus 0"
    return CheckResult("torch", "fail", f"{build}, but the run asks for GPUs", remedy)


def _launcher(spec: RunSpec, answer: InterpreterAnswer) -> Iterator[CheckResult]:
    """Check the modules that the launcher needs beside torch."""
    if answer.torch is None:
        return
    for module, package in LAUNCHERS[spec.launcher].modules:
        if module in answer.missing:
            detail = f"{spec.python} has no {module}, which launcher {spec.launcher} needs"
            remedy = f"install {package} there ({spec.python} -m pip install '{package}')"
            yield CheckResult("launcher", "fail", detail, remedy)
        else:
            yield CheckResult("launcher", "pass", f"{module} is there")


def _grace(spec: RunSpec, answer: InterpreterAnswer) -> Iterator[CheckResult]:
    """Warn of a torchrun that kills ranks before the profile's grace is over."""
    release = re.match(r"(\d+)\.(\d+)", answer.torch or "")
    # Those files are torchrun's own: accelerate starts a single rank without torchrun.
    by_torchrun = LAUNCHERS[spec.launcher].rank_output(spec.nproc) == RANK_OUTPUT
    if not by_torchrun or release is None or spec.grace_seconds <= GRACE_BEFORE_SECONDS:
        return
    if (int(release[1]), int(release[2])) < GRACE_SINCE:
        kills = f"torchrun of torch {answer.torch} kills ranks {GRACE_BEFORE_SECONDS} s after SIGTERM"
        remedy = f"install torch 2.12 or newer there, or let the script save within {GRACE_BEFORE_SECONDS} s of SIGTERM"
        yield CheckResult("grace", "warn", f"{kills}, not after the profile's {spec.grace_seconds:g} s", remedy)


def _module(spec: RunSpec, module: str, answer: InterpreterAnswer) -> CheckResult:
    if answer.module is None:
        where = spec.workdir if Path(spec.workdir).is_dir() else "the run's folder"
        remedy = "set workdir: to the folder that holds it, or install it into that environment"
        return CheckResult("module", "fail", f"{spec.python} finds no module {module} from {where}", remedy)
    if not answer.runnable:
        detail = f"{module} is a package without __main__.py"
        remedy = f"name the module to run, such as {module}.train"
        return CheckResult("module", "fail", f"{detail} ({answer.module})", remedy)
    return CheckResult("module", "pass", f"{module} from {answer.module}")
