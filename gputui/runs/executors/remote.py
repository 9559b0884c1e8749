"""The base of remote executors, for which the agent starts a courier per attempt."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.runs.checks import CheckResult
from gputui.runs.executors.base import Executor, ExecutorGoneError
from gputui.runs.launchers import LAUNCHERS

if TYPE_CHECKING:
    from gputui.runs.spec import RunSpec


class CourierExecutor(Executor):
    """An executor whose program is the script ``courier``."""

    places_gpus = False
    is_replaceable = True
    sees_processes = False
    courier: Path

    def __init__(self) -> None:
        self.file_name = self.courier.name

    def program(self, folder: Path, locks: Sequence[int] = ()) -> tuple[str, ...]:
        if not self.courier.is_file() or not Path(sys.executable).exists():
            raise ExecutorGoneError(
                f"gputui's own files are gone ({self.courier}); install it again, then restart the agent"
            )
        return (sys.executable, "-I", str(self.courier), str(folder))

    def checks(self, spec: RunSpec) -> list[CheckResult]:
        if LAUNCHERS[spec.launcher].needs_port:
            text = f"launcher {spec.launcher} needs a port that is known before the machine is"
            return [CheckResult("launcher", "fail", text, "use torchrun, or python")]
        return []
