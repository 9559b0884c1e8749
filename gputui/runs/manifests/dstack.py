"""dstack: a task to which the working directory is uploaded."""

from __future__ import annotations

from typing import Any

from gputui.runs.manifests.job import RUNS, PortableJob

CODE = "/workspace"


def manifest(job: PortableJob) -> tuple[list[str], dict[str, Any]]:
    """The manifest, and notes for a person."""
    content: dict[str, Any] = {"type": "task", "name": job.name}
    if job.image is not None:
        content["image"] = job.image
    content |= {
        "files": [f"{job.workdir}:{CODE}"],
        "working_dir": CODE,
        # A name alone takes its value from the submitting shell.
        "env": [*(f"{name}={value}" for name, value in job.env.items()), *job.secrets],
        "volumes": [{"name": job.volume, "path": RUNS}],
        "commands": [job.script],
    }
    if job.gpus:
        gpu: dict[str, Any] = {"count": job.gpus}
        if job.gpu_type is not None:
            gpu["name"] = job.gpu_type
        content["resources"] = {"gpu": gpu}
    return [f"dstack apply -f THIS; it needs the volume {job.volume} (type: volume)."], content
