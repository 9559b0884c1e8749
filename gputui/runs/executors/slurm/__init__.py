"""Slurm: an attempt is one job. A courier submits it by sbatch and polls it by squeue, on a login node that shares a
file system with the nodes: this machine, or one over SSH.

In: an attempt's folder. Out: the files of the contract. Read first: script.py (what is submitted), then
slurm_courier.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputui.runs.checks import CheckResult
from gputui.runs.executors.base import CourierExecutor
from gputui.runs.executors.slurm.nodes import FIRST_NODE, FIRST_PORT, NODE_RANK
from gputui.runs.executors.slurm.script import batch_script, nodes_of
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.launchers.base import Node, Placement

if TYPE_CHECKING:
    from gputui.runs.command import Launch
    from gputui.runs.executors.options import TargetOptions
    from gputui.runs.spec import RunSpec


class SlurmExecutor(CourierExecutor):
    """Jobs of a Slurm cluster."""

    courier = Path(__file__).with_name("slurm_courier.py")

    def placement(self, spec: RunSpec) -> Placement:
        count = nodes_of(spec.target or {})
        if count == 1:
            return super().placement(spec)
        return Placement((Node(FIRST_NODE, (), spec.nproc),) * count, FIRST_PORT, NODE_RANK)

    def checks(self, spec: RunSpec) -> list[CheckResult]:
        if nodes_of(spec.target or {}) > 1 and not LAUNCHERS[spec.launcher].spans_nodes:
            others = ", ".join(name for name, one in LAUNCHERS.items() if one.spans_nodes)
            text = f"launcher {spec.launcher} starts processes on one node only, and the target has nodes: more"
            return [CheckResult("launcher", "fail", text, f"use {others}, or nodes: 1")]
        return super().checks(spec)

    def sees_checkpoints(self, target: Mapping[str, Any]) -> bool:
        return not target.get("host")

    def clear(self, folder: Path, target: Mapping[str, Any]) -> None:
        from gputui.runs.executors.ssh.transport import remove_there

        if target.get("host"):
            remove_there(folder, target)

    def options(self) -> type[TargetOptions]:
        from gputui.runs.executors.options import SlurmOptions

        return SlurmOptions

    def preview(self, spec: RunSpec, launch: Launch) -> str:
        plan = {
            "argv": list(launch.argv),
            "target": dict(spec.target or {}),
            "asks": {"gpus": spec.gpus.count, "ranks": spec.nproc},
            "run_id": f"{spec.name}-N",
            "attempt": 1,
        }
        run_dir = "RUN" if (spec.target or {}).get("host") else launch.env["GPUTUI_RUN_DIR"]
        folder = f"{run_dir}/attempts/1/far"
        return batch_script(plan, folder, token="TOKEN")  # noqa: S106

    def survey(self, target: Mapping[str, Any]) -> Iterator[CheckResult]:
        from gputui.runs.executors.slurm.survey import survey

        return survey(target)
