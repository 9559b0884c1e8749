"""What the agent asks of every executor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputui.runs.checks import CheckResult
from gputui.runs.launchers.base import ANY_PORT, Placement
from gputui.store.attempts import Attempt

if TYPE_CHECKING:
    from gputui.runs.attempt_processes import AttemptProcess, ProcessScan
    from gputui.runs.command import Launch
    from gputui.runs.executors.options import TargetOptions
    from gputui.runs.spec import RunSpec


class ExecutorGoneError(Exception):
    """The executor's program cannot be started now; the text says why and what to do."""


class Executor(ABC):
    """A program that keeps the attempt contract.

    Attributes:
        places_gpus: attempts run on this machine's GPUs, so that leases and lock files apply to them.
        is_replaceable: where the program died without exit.json, another finds the attempt by what is in its folder;
            else the attempt ended with it.
        sees_processes: the attempt's processes are this machine's.
        file_name: of the program's script, by which one is known that has not written started.json yet.
    """

    places_gpus = True
    is_replaceable = False
    sees_processes = True
    file_name: str

    @abstractmethod
    def program(self, folder: Path, locks: Sequence[int] = ()) -> tuple[str, ...]:
        """The argument vector that serves the attempt in ``folder``, which inherits the descriptors in ``locks``.

        Raises ExecutorGoneError.
        """

    def placement(self, spec: RunSpec) -> Placement:
        """Where an attempt runs that is placed elsewhere: nodes without names yet."""
        return Placement.here((), spec.nproc, ANY_PORT)

    def sees_checkpoints(self, target: Mapping[str, Any]) -> bool:
        """Whether a run's checkpoints are seen here under the same path."""
        return True

    def clear(self, folder: Path, target: Mapping[str, Any]) -> None:  # noqa: B027 - most have nothing elsewhere
        """Remove what lies elsewhere of a run whose folder is ``folder``; may take long. Raises OSError where that is
        to be tried again."""

    def checks(self, spec: RunSpec) -> list[CheckResult]:
        """What it needs for a run and takes no time to see."""
        return []

    def options(self) -> type[TargetOptions]:
        """The keys of a target of this kind."""
        raise NotImplementedError

    def preview(self, spec: RunSpec, launch: Launch) -> str:
        """What would be handed over to start the launch there: the very script or request."""
        raise NotImplementedError

    def survey(self, target: Mapping[str, Any]) -> Iterator[CheckResult]:
        """See whether the target can be used, step by step; each may take until its own deadline."""
        raise NotImplementedError

    def processes(self, scan: ProcessScan, run_dir: Path, attempt: Attempt) -> list[AttemptProcess]:
        """The living processes of an attempt, the executor's own left out; none where it does not see them."""
        if not self.sees_processes:
            return []
        own = None if attempt.executor is None else attempt.executor[0]
        return [process for process in scan.processes_of(run_dir, attempt.number) if process.pid != own]
