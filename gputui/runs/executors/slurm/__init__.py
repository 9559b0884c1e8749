"""Slurm: an attempt is one job. A courier hands it over by sbatch and follows it by squeue, run on this machine: a
login node that shares its files with the nodes.

In comes an attempt's folder; out come the files of the contract. Read first: script.py (what is submitted), then
courier.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputui.runs.checks import CheckResult
from gputui.runs.executors.base import Executor, ExecutorGoneError
from gputui.runs.executors.slurm.script import batch_script
from gputui.runs.launchers import LAUNCHERS

if TYPE_CHECKING:
    from gputui.runs.command import Launch
    from gputui.runs.executors.options import TargetOptions
    from gputui.runs.spec import RunSpec

COURIER = Path(__file__).with_name("slurm_courier.py")


class SlurmExecutor(Executor):
    """Jobs of a Slurm cluster."""

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
            text = f"launcher {spec.launcher} needs a port that is known before the node is"
            return [CheckResult("launcher", "fail", text, "use torchrun, or python")]
        return []

    def options(self) -> type[TargetOptions]:
        from gputui.runs.executors.slurm.options import SlurmOptions

        return SlurmOptions

    def preview(self, spec: RunSpec, launch: Launch) -> str:
        plan = {
            "argv": list(launch.argv),
            "target": dict(spec.target or {}),
            "asks": {"gpus": spec.gpus.count, "ranks": spec.nproc},
            "run_id": f"{spec.name}-N",
            "attempt": 1,
        }
        folder = f"{launch.env['GPUTUI_RUN_DIR']}/attempts/1/far"
        return batch_script(plan, folder, token="TOKEN")  # noqa: S106

    def survey(self, target: Mapping[str, Any]) -> Iterator[CheckResult]:
        from gputui.runs.executors.slurm.survey import survey

        return survey(target)
