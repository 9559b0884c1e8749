"""Asking the interpreter of a training environment what it has, without importing any of it.

Importing torch takes seconds and may touch the driver; that it can be found, its version and the CUDA that it was built
for stand in files. The question is put in the run's working directory and environment, with a deadline.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gputui.host.child import ChildError, run_child
from gputui.runs.checks import CheckResult
from gputui.runs.command import substitute, values_for
from gputui.runs.launch_shell import passed_on
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.spec import RunSpec

DEADLINE_SECONDS = 20.0

_MARK = "gputui-probe:"

# Runs in a foreign Python, so it keeps to what every Python 3 understands. A package's parts are looked up on its path:
# find_spec with a dotted name would import the package.
_SCRIPT = r"""
import importlib.machinery, importlib.util, json, os, re, sys
def find(name):
    parts = name.split(".")
    spec = importlib.util.find_spec(parts[0])
    for end in range(2, len(parts) + 1):
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[:end]), list(spec.submodule_search_locations))
    return spec
answer = {"python": sys.version.split()[0], "module": None, "runnable": False}
answer.update({"torch": None, "cuda": None, "nccl": None, "missing": []})
if sys.argv[1]:
    spec = find(sys.argv[1])
    if spec is not None:
        answer["module"] = spec.origin or "a folder without __init__.py"
        answer["runnable"] = spec.submodule_search_locations is None or find(sys.argv[1] + ".__main__") is not None
torch = find("torch")
if torch is not None and torch.submodule_search_locations:
    answer["torch"] = "unknown"
    try:
        with open(os.path.join(list(torch.submodule_search_locations)[0], "version.py")) as file:
            text = file.read()
        version = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", text)
        cuda = re.search(r"^cuda\b[^=]*=\s*['\"]([^'\"]+)", text, re.M)
        answer["torch"] = version.group(1) if version else "unknown"
        answer["cuda"] = cuda.group(1) if cuda else None
    except OSError:
        pass
    try:
        from importlib import metadata
        for cuda_major in (answer["cuda"] or "").split(".")[:1]:
            answer["nccl"] = metadata.version("nvidia-nccl-cu" + cuda_major)
    except Exception:
        pass
answer["missing"] = [name for name in sys.argv[3:] if find(name) is None]
sys.stdout.write("\n" + sys.argv[2] + json.dumps(answer) + "\n")
"""


def check_interpreter(
    spec: RunSpec,
    environ: Mapping[str, str],
    *,
    simulated_gpus: bool = False,
    deadline_seconds: float = DEADLINE_SECONDS,
) -> list[CheckResult]:
    """Does the interpreter run, has it torch where torchrun needs it, and does it find the module? Starts one process
    and waits for it, at most until the deadline. With ``simulated_gpus`` a torch without CUDA will do: the processes
    then work on the CPU."""
    if spec.python is None:
        return [CheckResult("interpreter", "skip", f"launcher {spec.launcher} names its own program")]
    module = spec.program[1] if spec.program[0] == "-m" else ""
    answer = _ask(spec, module, environ, deadline_seconds)
    if isinstance(answer, str):
        remedy = "set python: in the profile to the training environment's interpreter"
        return [CheckResult("interpreter", "fail", f"{spec.python} {answer}", remedy)]
    results = [CheckResult("interpreter", "pass", f"Python {answer['python']} at {spec.python}")]
    results.append(_torch(spec, answer, simulated_gpus))
    results += _launcher(spec, answer)
    if module:
        results.append(_module(spec, module, answer))
    return results


def _torch(spec: RunSpec, answer: Mapping[str, Any], simulated_gpus: bool) -> CheckResult:
    version, cuda = answer["torch"], answer["cuda"]
    if version is None:
        if not LAUNCHERS[spec.launcher].modules:
            return CheckResult("torch", "skip", f"not installed there, and launcher {spec.launcher} does not need it")
        package = "'gputui[train]'" if spec.python == sys.executable else "torch"
        return CheckResult(
            "torch", "fail", f"{spec.python} has no torch, which launcher {spec.launcher} needs",
            f"install it there ({spec.python} -m pip install {package}), or set python: to an interpreter that has it",
        )  # fmt: skip
    built = f"torch {version} built for CUDA {cuda}" if cuda else f"torch {version} without CUDA"
    if spec.gpus.count and simulated_gpus:
        return CheckResult("torch", "pass", f"{built}; the GPUs are simulated, the processes work on the CPU")
    if spec.gpus.count and cuda is None:
        return CheckResult(
            "torch", "fail", f"{built}, but the run asks for GPUs",
            "install a build of torch with CUDA there, or use --gpus 0",
        )  # fmt: skip
    return CheckResult("torch", "pass", built)


def _launcher(spec: RunSpec, answer: Mapping[str, Any]) -> Iterator[CheckResult]:
    """What its launcher needs beside torch."""
    if answer["torch"] is None:
        return
    for module, package in LAUNCHERS[spec.launcher].modules:
        if module in answer["missing"]:
            yield CheckResult(
                "launcher", "fail", f"{spec.python} has no {module}, which launcher {spec.launcher} needs",
                f"install {package} there ({spec.python} -m pip install '{package}')",
            )  # fmt: skip
        else:
            yield CheckResult("launcher", "pass", f"{module} is there")


def _module(spec: RunSpec, module: str, answer: Mapping[str, Any]) -> CheckResult:
    if answer["module"] is None:
        where = spec.workdir if Path(spec.workdir).is_dir() else "the run's folder"
        return CheckResult(
            "module", "fail", f"{spec.python} finds no module {module} from {where}",
            "set workdir: to the folder that holds it, or install it into that environment",
        )  # fmt: skip
    if not answer["runnable"]:
        return CheckResult(
            "module", "fail", f"{module} is a package without __main__.py ({answer['module']})",
            f"name the module to run, such as {module}.train",
        )  # fmt: skip
    return CheckResult("module", "pass", f"{module} from {answer['module']}")


def _ask(spec: RunSpec, module: str, environ: Mapping[str, str], deadline_seconds: float) -> dict[str, Any] | str:
    """The answer, or what went wrong as the end of a sentence."""
    needed = [name for name, _ in LAUNCHERS[spec.launcher].modules]
    return ask(str(spec.python), environment_of(spec, environ), spec.workdir, module, deadline_seconds, needed)


def environment_of(spec: RunSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """What a run gets of the shell whose environment is ``environ``, with what the profile adds to it."""
    values = values_for(spec.params, "/nowhere", None)
    return {**passed_on(environ), **{name: substitute(text, values) for name, text in spec.env.items()}}


def ask(
    python: str,
    environ: Mapping[str, str],
    workdir: str,
    module: str = "",
    deadline_seconds: float = DEADLINE_SECONDS,
    needed: Sequence[str] = (),
) -> dict[str, Any] | str:
    """What an interpreter has: ``python``, ``torch``, ``cuda`` and ``nccl`` versions (None where it has none),
    ``missing`` which of the modules ``needed`` are not there, ``module`` and ``runnable`` about the one asked for. Or
    what went wrong, as the end of a sentence."""
    folder = workdir if Path(workdir).is_dir() else "/"
    try:
        answered = run_child(
            [python, "-c", _SCRIPT, module, _MARK, *needed],
            deadline_seconds=deadline_seconds,
            environ=environ,
            workdir=folder,
        )
    except ChildError as error:
        return str(error)
    for line in reversed(answered.output.splitlines()):
        if line.startswith(_MARK):
            answer: dict[str, Any] = json.loads(line.removeprefix(_MARK))
            return answer
    return f"does not answer as a Python: {answered.last_words}"
