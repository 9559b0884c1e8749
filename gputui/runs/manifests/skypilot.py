"""SkyPilot: a task to which the working directory is uploaded."""

from __future__ import annotations

from typing import Any

from gputui.runs.manifests.job import RUNS, ManifestError, PortableJob


def manifest(job: PortableJob) -> tuple[list[str], dict[str, Any]]:
    """The manifest, and notes for a person. Raises ManifestError."""
    if job.gpus and job.gpu_type is None:
        raise ManifestError("SkyPilot asks for GPUs by type: --gpu-type H100")
    resources: dict[str, Any] = {}
    if job.gpus:
        resources["accelerators"] = f"{job.gpu_type}:{job.gpus}"
    if job.image is not None:
        resources["image_id"] = f"docker:{job.image}"
    content: dict[str, Any] = {"name": job.name, "workdir": job.workdir}
    if resources:
        content["resources"] = resources
    content["envs"] = dict(job.env)
    if job.secrets:
        content["secrets"] = dict.fromkeys(job.secrets)
    content |= {"file_mounts": {RUNS: {"name": job.volume, "mode": "MOUNT"}}, "run": job.script}
    given = " ".join(f"--secret {name}" for name in job.secrets)
    notes = [f"sky launch {given + ' ' if given else ''}THIS; runs are kept in the bucket {job.volume}."]
    return notes, content
