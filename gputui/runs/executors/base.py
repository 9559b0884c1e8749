"""The interface of executors to the agent."""

from __future__ import annotations

import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from gputui.runs import shim
from gputui.runs.checks import CheckResult
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.launchers.base import ANY_PORT, Placement
from gputui.store.attempts import Attempt

if TYPE_CHECKING:
    from gputui.runs.command import Launch
    from gputui.runs.processes import AttemptProcess, ProcessScan
    from gputui.runs.spec import RunSpec


class ExecutorGoneError(Exception):
    """The executor's program cannot be started; the text has the reason and a remedy."""


class Executor(ABC):
    """A program that keeps the attempt contract.

    Attributes:
        places_gpus: attempts run on this machine's GPUs, so that leases and lock files apply to
            them.
        is_replaceable: if the program dies without exit.json, a new one can find the attempt by its
            folder; else the attempt has ended with it.
        sees_processes: the attempt's processes are this machine's.
        file_name: the program's script, which identifies a process that has not yet written
            started.json.
    """

    places_gpus = True
    is_replaceable = False
    sees_processes = True
    file_name: str

    @abstractmethod
    def program(self, folder: Path, locks: Sequence[int] = ()) -> tuple[str, ...]:
        """The command that runs the attempt in ``folder``, with inherited ``locks``. Raises
        ExecutorGoneError."""

    def placement(self, spec: RunSpec) -> Placement:
        """The placement of an attempt whose nodes the target chooses: nodes without names."""
        return Placement.here((), spec.nproc, ANY_PORT)

    def sees_checkpoints(self, target: Mapping[str, Any]) -> bool:
        """Return whether a run's checkpoints are on this machine under the same path."""
        return True

    def clear(self, folder: Path, target: Mapping[str, Any]) -> None:  # noqa: B027 - most have nothing elsewhere
        """Remove the run's files on the target. Raises OSError if it should be tried again."""

    def checks(self, spec: RunSpec) -> list[CheckResult]:
        """The quick checks of what a run needs."""
        return []

    def preview(self, spec: RunSpec, launch: Launch) -> str:
        """The exact script or request that would start the launch on the target."""
        raise NotImplementedError

    def survey(self, target: Mapping[str, Any]) -> Iterator[CheckResult]:
        """Check step by step, each with its own deadline, whether the target can be used."""
        raise NotImplementedError

    def processes(self, scan: ProcessScan, run_dir: Path, attempt: Attempt) -> list[AttemptProcess]:
        """The living processes of an attempt without the executor's own, as far as it sees them."""
        if not self.sees_processes:
            return []
        executor_pid = None if attempt.executor is None else attempt.executor[0]
        return [process for process in scan.processes_of(run_dir, attempt.number) if process.pid != executor_pid]


class LocalExecutor(Executor):
    """Runs attempts on this machine by the shim."""

    file_name = Path(shim.__file__).name

    def program(self, folder: Path, locks: Sequence[int] = ()) -> tuple[str, ...]:
        for needed in (Path(sys.executable), *shim.SHIM_FILES):
            if not needed.is_file():
                raise ExecutorGoneError(
                    f"{needed} is gone; install gputui again, then gputui agent stop and gputui agent start"
                )
        return (sys.executable, "-I", "-S", shim.__file__, str(folder), *map(str, locks))


class RunnerExecutor(Executor):
    """An executor whose program is the script ``runner``."""

    places_gpus = False
    is_replaceable = True
    sees_processes = False
    runner: Path

    def __init__(self) -> None:
        self.file_name = self.runner.name

    def program(self, folder: Path, locks: Sequence[int] = ()) -> tuple[str, ...]:
        if not self.runner.is_file() or not Path(sys.executable).exists():
            raise ExecutorGoneError(
                f"gputui's own files are gone ({self.runner}); install it again, then restart the agent"
            )
        return (sys.executable, "-I", str(self.runner), str(folder))

    def checks(self, spec: RunSpec) -> list[CheckResult]:
        if LAUNCHERS[spec.launcher].needs_port:
            text = f"launcher {spec.launcher} needs a port that is known before the machine is"
            return [CheckResult("launcher", "fail", text, "use torchrun, or python")]
        return []

    @abstractmethod
    def preview_script(self, spec: RunSpec, launch: Launch) -> str:
        """The exact script or request that would start the launch on the target."""

    def preview(self, spec: RunSpec, launch: Launch) -> str:
        script = self.preview_script(spec, launch).rstrip("\n")
        return "\n".join([script, "", *self.command_comments(spec, launch)])

    def command_comments(self, spec: RunSpec, launch: Launch) -> list[str]:
        """Comment lines with the command that the script runs in the end, and the paths that are
        other ones there; RUN is the run's folder on the target."""
        from gputui.runs.executors.mirror import with_remote_paths
        from gputui.runs.executors.remote_runner import python_of

        plan = self.preview_plan(spec, launch)
        run_dir = launch.env["GPUTUI_RUN_DIR"]
        paths: dict[str, str] = {}
        if not self.sees_checkpoints(spec.target or {}):
            paths = {run_dir: "RUN"}
            if not PurePath(launch.cwd).is_relative_to(run_dir):
                paths[launch.cwd] = "RUN/code"
        remote_plan = with_remote_paths({"argv": list(launch.argv), "cwd": launch.cwd}, paths, python_of(plan))
        lines = [f"# It runs {shlex.join(remote_plan['argv'])}", f"# in {remote_plan['cwd']}"]
        return lines + [f"# {here} is {remote_path} there" for here, remote_path in paths.items()]

    def preview_plan(self, spec: RunSpec, launch: Launch) -> dict[str, Any]:
        """The part of attempt.json that a preview shows."""
        return {
            "argv": list(launch.argv),
            "target": dict(spec.target or {}),
            "asks": {"gpus": spec.gpus.count, "ranks": spec.nproc},
            "grace_seconds": launch.grace_seconds,
            "run_id": f"{spec.name}-N",
            "attempt": 1,
        }

    def preview_folder(self, spec: RunSpec, launch: Launch) -> str:
        """The folder of an attempt that a preview shows; RUN is the run's folder on the target."""
        run_folder = "RUN"
        if self.sees_checkpoints(spec.target or {}):
            run_folder = launch.env["GPUTUI_RUN_DIR"]
        return f"{run_folder}/attempts/1/remote"
