"""Checks whether the training interpreter's torch, CUDA and NCCL fit the driver. Pure."""

from __future__ import annotations

from gputui.profiles.doctor.gpus import GpuReading
from gputui.profiles.probe import InterpreterAnswer, ProbeError
from gputui.runs.checks import CheckResult


def silent_interpreter(python: str, error: ProbeError) -> CheckResult:
    """The result for an interpreter that gave no answer."""
    remedy = "name a profile whose python: is the training environment's interpreter"
    return CheckResult("interpreter", "fail", f"{python} {error}", remedy)


def check_interpreter(python: str, answer: InterpreterAnswer, reading: GpuReading) -> list[CheckResult]:
    """Check the packages of an interpreter, and whether the GPUs' driver supports them."""
    results = [CheckResult("interpreter", "pass", f"Python {answer.python} at {python}")]
    if answer.torch is None:
        remedy = "name a profile (gputui doctor PROFILE), or install torch there"
        return [*results, CheckResult("torch", "warn", f"{python} has no torch", remedy)]
    real = reading.source == "nvml" and bool(reading.facts)
    return [*results, _cuda(answer.torch, answer.cuda, reading.cuda, real), _nccl(answer, real)]


def _cuda(torch: str, built_for: str | None, driver: tuple[int, int] | None, has_gpus: bool) -> CheckResult:
    """CUDA of a newer major version than the driver's does not start; a newer minor one does, since CUDA 11:
    https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html."""
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
    return CheckResult("nccl", "pass", detail if has_gpus else f"{detail}; no GPU to use it with")


def version_of(text: str) -> tuple[int, int] | None:
    """The first two numbers of a version, or None."""
    parts = text.split(".")
    try:
        return int(parts[0]), int(parts[1]) if len(parts) > 1 else 0
    except ValueError:
        return None
