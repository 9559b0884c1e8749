"""Starting processes that are measured, as a person would start them, and what they cost."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_LIMIT_SECONDS = 1800.0
_SHOWN_CHARACTERS = 1500
_NOT_PASSED_ON = ("GPUTUI_", "TRAINER_", "TORCHELASTIC_")


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs that CUDA offers here."""

    name: str
    count: int
    memory_bytes: int


def run(command: Sequence[str], *, cuda: bool, threads: int | None = 1) -> int:
    """Runs a command to its end; the peak resident memory of the largest of its processes, in bytes.

    A process begins with the memory of the one that it was forked from: no peak is smaller than this process's.
    `threads` are those of torch on the CPU, in each process; None leaves them to torch. Raises CalledProcessError with
    the end of the command's output where it fails, TimeoutExpired where it takes half an hour.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=_environment(cuda, threads), stdout=output, stderr=subprocess.STDOUT
        )
        # torchrun ends its ranks when it is asked to end; so nothing is left whatever happens here. The timer does not
        # look whether the process has ended, because whoever looks takes the status away.
        limit = threading.Timer(_LIMIT_SECONDS, os.kill, (process.pid, signal.SIGTERM))
        limit.start()
        try:
            # The only way to learn of one command's peak, ranks included, without looking at it while it runs.
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.terminate()
            process.wait()
            raise
        finally:
            expired = not limit.is_alive()
            limit.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        if expired:
            raise subprocess.TimeoutExpired(command, _LIMIT_SECONDS)
        if process.returncode:
            output.seek(0)
            text = output.read().decode(errors="replace")
            raise subprocess.CalledProcessError(process.returncode, command, stderr=text[-_SHOWN_CHARACTERS:])
        return usage.ru_maxrss * 1024


def child(module: str, *arguments: str, cuda: bool) -> Any:
    """Run a module in a process of its own, on one thread, and return its JSON. Raises
    CalledProcessError."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=_environment(cuda, 1),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def module(name: str, *arguments: str, ranks: int, cuda: bool = False) -> list[str]:
    """The command that runs a module: in that many ranks under torchrun, each on a core of its own unless they compute
    on GPUs, or with 0 without torchrun."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    bound = ["-m", "benchmarks.trainer.bound"] if ranks and not cuda else ["-m"]
    return [sys.executable, *launcher, *bound, name, *arguments]


@functools.cache
def gpus() -> Gpus | None:
    """The GPUs that torch can use; None without any. Asked in another process: this one keeps no context on a GPU."""
    gpus = child("benchmarks.trainer.launch", cuda=True)
    return None if gpus is None else Gpus(**gpus)


def _environment(cuda: bool, threads: int | None) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_PASSED_ON)}
    environ["PYTHONPATH"] = str(ROOT)
    if not cuda:
        environ["CUDA_VISIBLE_DEVICES"] = ""
    if threads is not None:
        environ["OMP_NUM_THREADS"] = str(threads)
    return environ


def _look() -> dict[str, Any] | None:
    import torch

    if not torch.cuda.is_available():
        return None
    first = torch.cuda.get_device_properties(0)
    return {"name": first.name, "count": torch.cuda.device_count(), "memory_bytes": first.total_memory}


if __name__ == "__main__":
    print(json.dumps(_look()))
