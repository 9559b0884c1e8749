"""Ray: an attempt is one job of the Jobs API, used by plain HTTP, without the ray package.

In: an attempt's folder. Out: the files of the contract. Read first: request.py (what is submitted), then
ray_courier.py.
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


class RayExecutor(CourierExecutor):
    """Jobs of a Ray cluster."""

    courier = Path(__file__).with_name("ray_courier.py")

    def sees_checkpoints(self, target: Mapping[str, Any]) -> bool:
        return bool(target.get("shared"))

    def clear(self, folder: Path, target: Mapping[str, Any]) -> None:
        from gputui.runs.executors.ray.ray_courier import remove_there

        if not target.get("shared"):
            remove_there(folder, target)

    def options(self) -> type[TargetOptions]:
        from gputui.runs.executors.options import RayOptions

        return RayOptions

    def preview(self, spec: RunSpec, launch: Launch) -> str:
        from gputui.runs.executors.ray.jobs_api import preview

        target = dict(spec.target or {})
        run_dir = launch.env["GPUTUI_RUN_DIR"]
        folder = f"{run_dir}/attempts/1/far" if target.get("shared") else "RUN/attempts/1/far"
        plan = {
            "argv": list(launch.argv),
            "target": target,
            "asks": {"gpus": spec.gpus.count, "ranks": spec.nproc},
            "grace_seconds": launch.grace_seconds,
            "run_id": f"{spec.name}-N",
            "attempt": 1,
        }
        return preview(plan, folder)

    def survey(self, target: Mapping[str, Any]) -> Iterator[CheckResult]:
        from gputui.runs.executors.ray.survey import survey

        return survey(target)
