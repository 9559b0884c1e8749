"""A second workstation over SSH: the shim runs there, a courier starts it, asks for what its files grew by, and passes
a stop on.

In comes an attempt's folder; out come the files of the contract. Read first: ssh_courier.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputui.runs.checks import CheckResult
from gputui.runs.executors.base import Executor, ExecutorGoneError
from gputui.runs.launchers import LAUNCHERS

if TYPE_CHECKING:
    from gputui.runs.command import Launch
    from gputui.runs.executors.options import TargetOptions
    from gputui.runs.spec import RunSpec

COURIER = Path(__file__).with_name("ssh_courier.py")


class SshExecutor(Executor):
    """Another machine of the same user."""

    places_gpus = False
    is_replaceable = True
    sees_processes = False
    file_name = COURIER.name

    def program(self, folder: Path, locks: Sequence[int] = ()) -> tuple[str, ...]:
        if not COURIER.is_file() or not Path(sys.executable).exists():
            raise ExecutorGoneError(
                f"gputui's own files are gone ({COURIER}); install it again, then restart the agent"
            )
        return (sys.executable, "-I", str(COURIER), str(folder))

    def checks(self, spec: RunSpec) -> list[CheckResult]:
        if LAUNCHERS[spec.launcher].needs_port:
            text = f"launcher {spec.launcher} needs a port that is known to be free there"
            return [CheckResult("launcher", "fail", text, "use torchrun, or python")]
        return []

    def options(self) -> type[TargetOptions]:
        from gputui.runs.executors.ssh.options import SshOptions

        return SshOptions

    def preview(self, spec: RunSpec, launch: Launch) -> str:
        from gputui.runs.executors.ssh.ssh_courier import job_script

        plan = {"argv": list(launch.argv), "target": dict(spec.target or {}), "asks": {"gpus": spec.gpus.count}}
        return job_script(plan, "RUN/attempts/1/far", "CLAIM")

    def survey(self, target: Mapping[str, Any]) -> Iterator[CheckResult]:
        from gputui.runs.executors.ssh.survey import survey

        return survey(target)
