"""KubeRay: a RayJob with a cluster of one GPU worker, which exists for the job only."""

from __future__ import annotations

import shlex
from typing import Any

from gputui.runs.manifests.job import RUNS, ManifestError, PortableJob

FINISHED_SECONDS = 3600


def manifest(job: PortableJob) -> tuple[list[str], dict[str, Any]]:
    """The manifest, and notes for a person. Raises ManifestError."""
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
    needs = {"entrypointNumCpus": 1, **({"entrypointNumGpus": job.gpus} if job.gpus else {})}
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
            "ttlSecondsAfterFinished": FINISHED_SECONDS,
            "rayClusterSpec": {
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0"},
                    "template": {"spec": {"containers": [{"name": "head", "image": job.image}]}},
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "workers",
                        "replicas": 1,
                        "minReplicas": 1,
                        "maxReplicas": 1,
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
