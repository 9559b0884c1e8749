"""Manifests: a profile as a job file of another system, which runs it without gputui, untracked."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import yaml
from msgspec import Struct
from msgspec.structs import replace

from gputui.core.errors import ExplainedError
from gputui.core.redaction import Redactor
from gputui.runs.command import build_launch
from gputui.runs.executors.mirror import with_remote_paths
from gputui.runs.launchers.base import ANY_PORT, Placement
from gputui.runs.redaction import secrets_of
from gputui.runs.spec import RunSpec

RUNS = "/runs"
"""The mount point of the volume of runs."""


class ManifestError(ExplainedError):
    """The system cannot run the profile; the text has the reason and a remedy."""


class PortableJob(Struct, frozen=True):
    """A job that runs in the folder of the code.

    Attributes:
        name: valid in DNS, which most systems require.
        volume: the name of the volume mounted at RUNS.
        script: lines of a POSIX shell.
        env: variables without secrets.
        secrets: names of variables with secrets.
        workdir: the local folder of the code.
        gpus: how many.
        gpu_type: the type that its GPUs must have, as the system names it; None for any.
        image: the container image; None leaves the system's own.
    """

    name: str
    volume: str
    script: str
    env: Mapping[str, str]
    secrets: tuple[str, ...]
    workdir: str
    gpus: int
    gpu_type: str | None
    image: str | None


def write_manifest(system: str, spec: RunSpec, *, image: str | None, gpu_type: str | None) -> str:
    """The text of a manifest. Raises ManifestError."""
    job = job_of(spec, image=image, gpu_type=gpu_type)
    notes, content = MANIFESTS[system](job)
    head = "".join(f"# {line}\n" for line in notes)
    return head + yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    """Writes multi-line strings as block scalars."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def job_of(spec: RunSpec, *, image: str | None, gpu_type: str | None) -> PortableJob:
    """The job of a profile's first attempt. Raises ManifestError for a secret in its command."""
    name = re.sub(r"[^a-z0-9-]+", "-", spec.name.lower()).strip("-")[:40] or "run"
    run_dir = f"{RUNS}/{name}"
    launch = build_launch(
        replace(spec, python="python"), run_dir=run_dir, attempt=1, params=spec.params,
        placement=Placement.here((), spec.nproc, ANY_PORT), checkpoint=None,
    )  # fmt: skip
    plan: dict[str, Any] = with_remote_paths({"argv": list(launch.argv), "env": launch.env}, {spec.workdir: "."})
    redactor = Redactor(secrets_of(spec))
    if redactor.argv(plan["argv"]) != tuple(plan["argv"]):
        raise ManifestError("a secret is on the command line; put it into env: of the profile, so that it is left out")
    env = {key: value for key, value in plan["env"].items() if key not in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")}
    redacted = redactor.env(env)
    secrets = tuple(key for key in env if redacted[key] != env[key])
    folders = shlex.join(["mkdir", "-p", f"{run_dir}/attempts/1/nodes/0", f"{run_dir}/checkpoints"])
    return PortableJob(
        name, f"{name}-runs", f"{folders}\nexec {shlex.join(plan['argv'])}\n",
        # torchrun's default of --tee: ranks print to the job's log too.
        env={**{key: value for key, value in env.items() if key not in secrets}, "PET_TEE": "3"},
        secrets=secrets, workdir=spec.workdir, gpus=spec.gpus.count, gpu_type=gpu_type, image=image,
    )  # fmt: skip


def _kuberay(job: PortableJob) -> tuple[list[str], dict[str, Any]]:
    """A RayJob with a cluster of one GPU worker, which exists for the job only."""
    if job.image is None:
        raise ManifestError("KubeRay needs --image: one with Ray, the training environment, and the code in its folder")
    container: dict[str, Any] = {
        "image": job.image,
        "env": [
            *({"name": name, "value": value} for name, value in job.env.items()),
            *({"name": name, "valueFrom": {"secretKeyRef": {"name": job.name, "key": name}}} for name in job.secrets),
        ],
        "volumeMounts": [{"name": "runs", "mountPath": RUNS}],
    }
    worker = {"name": "worker", **container}
    if job.gpus:
        worker["resources"] = {"limits": {"nvidia.com/gpu": job.gpus}, "requests": {"nvidia.com/gpu": job.gpus}}
    volumes = [{"name": "runs", "persistentVolumeClaim": {"claimName": job.volume}}]
    # The head has no CPU for jobs, so that the entrypoint runs on the worker.
    needs = {"entrypointNumCpus": 1}
    if job.gpus:
        needs["entrypointNumGpus"] = job.gpus
    content = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": job.name},
        "spec": {
            "entrypoint": shlex.join(["sh", "-c", job.script]),
            **needs,
            "submissionMode": "K8sJobMode",
            "backoffLimit": 0,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 3600,
            "rayClusterSpec": {
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0"},
                    "template": {"spec": {"containers": [{"name": "head", "image": job.image}]}},
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "workers",
                        **dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), 1),
                        "rayStartParams": {},
                        "template": {"spec": {"containers": [worker], "volumes": volumes}},
                    }
                ],
            },
        },
    }
    notes = [
        f"kubectl apply -f THIS; it needs the PersistentVolumeClaim {job.volume} in its namespace.",
        "The image has the code in its working directory.",
    ]
    if job.secrets:
        values = " ".join(f"--from-literal={name}=…" for name in job.secrets)
        notes.append(f"Secrets are not here: kubectl create secret generic {job.name} {values}")
    return notes, content


def _skypilot(job: PortableJob) -> tuple[list[str], dict[str, Any]]:
    """A SkyPilot task to which the working directory is uploaded."""
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
    command = " ".join(["sky launch", *(f"--secret {name}" for name in job.secrets), "THIS"])
    notes = [f"{command}; runs are kept in the bucket {job.volume}."]
    return notes, content


def _dstack(job: PortableJob) -> tuple[list[str], dict[str, Any]]:
    """A dstack task to which the working directory is uploaded."""
    content: dict[str, Any] = {"type": "task", "name": job.name}
    if job.image is not None:
        content["image"] = job.image
    content |= {
        "files": [f"{job.workdir}:/workspace"],
        "working_dir": "/workspace",
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


MANIFESTS: dict[str, Callable[[PortableJob], tuple[list[str], dict[str, Any]]]] = {
    "kuberay": _kuberay,
    "skypilot": _skypilot,
    "dstack": _dstack,
}
"""What makes a system's manifest, with notes for a person, by name; it raises ManifestError."""
