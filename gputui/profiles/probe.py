"""Ask the interpreter of a training environment for its packages, without importing them.

Importing torch takes seconds and may touch the driver; its version and CUDA version can be read from files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from gputui.machine.child import ChildError, run_child

DEADLINE_SECONDS = 20.0  # importing torch from a cold disk takes some seconds

_MARK = "gputui-probe:"

# Runs in another Python, so it must be valid in every Python 3. It imports the standard library
# before it adds the working directory to the path, which may have a json.py (metadata uses
# email.parser). It looks up a package's parts on the package's path, because find_spec with a
# dotted name would import the package.
_SCRIPT = r"""
import sys
workdir = sys.path[:1] if sys.path[:1] == [""] else []
del sys.path[:len(workdir)]
import email.parser, importlib.machinery, importlib.util, json, os, re
try:
    from importlib import metadata
except ImportError:
    metadata = None
sys.path[:0] = workdir
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
if torch is not None and torch.has_location and torch.submodule_search_locations:
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
        if answer["cuda"] and metadata:
            answer["nccl"] = metadata.version("nvidia-nccl-cu" + answer["cuda"].split(".")[0])
    except Exception:
        pass
answer["missing"] = [name for name in sys.argv[3:] if find(name) is None]
sys.stdout.write("\n" + sys.argv[2] + json.dumps(answer) + "\n")
"""


class ProbeError(Exception):
    """The interpreter gave no answer. The text ends a sentence about it."""


class InterpreterAnswer(Struct, frozen=True):
    """The versions and modules of an interpreter.

    Attributes:
        torch: None if torch is not installed, "unknown" if its version cannot be read.
        cuda: The CUDA version that torch was built for, if any.
        nccl: The version of the NCCL package; None if NCCL is built into torch.
        module: The file of the module to run; None if it was not found or not asked for.
        runnable: ``-m`` can run that module.
        missing: The needed modules that are not installed.
    """

    python: str
    torch: str | None
    cuda: str | None
    nccl: str | None
    module: str | None
    runnable: bool
    missing: tuple[str, ...]


def ask_interpreter(
    python: str,
    environ: Mapping[str, str],
    workdir: str,
    module: str = "",
    deadline_seconds: float = DEADLINE_SECONDS,
    needed: Sequence[str] = (),
) -> InterpreterAnswer:
    """Ask an interpreter in a run's environment and working directory (/ if that does not exist); starts one process.

    Args:
        module: The module to run, "" for none.
        needed: Others that must be installed.

    Raises:
        ProbeError: It gave no answer.
    """
    folder = workdir if Path(workdir).is_dir() else "/"
    try:
        answered = run_child(
            [python, "-c", _SCRIPT, module, _MARK, *needed],
            deadline_seconds=deadline_seconds,
            environ=environ,
            workdir=folder,
        )
    except ChildError as error:
        raise ProbeError(str(error)) from error
    for line in reversed(answered.output.splitlines()):
        if line.startswith(_MARK):
            answer = json.loads(line.removeprefix(_MARK))
            return InterpreterAnswer(**{**answer, "missing": tuple(answer["missing"])})
    raise ProbeError(f"does not answer as a Python: {answered.stderr_tail}")
