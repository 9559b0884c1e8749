"""SSH: the shim runs on another machine of the user. A courier starts it, fetches the data that its files grow by, and
forwards a stop.

In: an attempt's folder. Out: the files of the contract. Read first: ssh_courier.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputui.runs.checks import CheckResult
from gputui.runs.executors.base import CourierExecutor

if TYPE_CHECKING:
    from gputui.runs.command import Launch
    from gputui.runs.executors.options import TargetOptions
    from gputui.runs.spec import RunSpec


class SshExecutor(CourierExecutor):
    """Attempts on another machine of the user, over SSH."""

    courier = Path(__file__).with_name("ssh_courier.py")

    def sees_checkpoints(self, target: Mapping[str, Any]) -> bool:
        return False

    def clear(self, folder: Path, target: Mapping[str, Any]) -> None:
        from gputui.runs.executors.ssh.transport import remove_there

        remove_there(folder, target)

    def options(self) -> type[TargetOptions]:
        from gputui.runs.executors.options import SshOptions

        return SshOptions

    def preview(self, spec: RunSpec, launch: Launch) -> str:
        from gputui.runs.executors.ssh.ssh_courier import job_script

        plan = {"argv": list(launch.argv), "target": dict(spec.target or {}), "asks": {"gpus": spec.gpus.count}}
        return job_script(plan, "RUN/attempts/1/far", "CLAIM")

    def survey(self, target: Mapping[str, Any]) -> Iterator[CheckResult]:
        from gputui.runs.executors.ssh.connection import survey

        return survey(target)
