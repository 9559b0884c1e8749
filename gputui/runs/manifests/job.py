"""A profile as a portable job, from which all manifests are made."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Mapping
from typing import Any

import yaml
from msgspec import Struct
from msgspec.structs import replace

from gputui.core.redaction import Redactor
from gputui.runs.command import build_launch
from gputui.runs.executors.mirror import moved
from gputui.runs.launchers.base import ANY_PORT, Placement
from gputui.runs.manifests import MANIFESTS
from gputui.runs.redaction import secrets_of
from gputui.runs.spec import RunSpec

RUNS = "/runs"
"""The mount point of the volume of runs."""


class ManifestError(Exception):
    """The system cannot run the profile; the text has the reason and a remedy."""


class PortableJob(Struct, frozen=True):
    """A job that runs in the folder of the code.

    Attributes:
        name: valid in DNS, which most systems require; volume: the name of the volume mounted at RUNS.
        script: lines of a POSIX shell; env: variables without secrets; secrets: names of variables with secrets.
        workdir: the local folder of the code; gpu_type and image: those requested, if any.
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
    notes, content = importlib.import_module(MANIFESTS[system]).manifest(job)
    head = "".join(f"# {line}\n" for line in notes)
    return head + yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    """Writes multi-line strings as block scalars."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def job_of(spec: RunSpec, *, image: str | None, gpu_type: str | None) -> PortableJob:
    """The job of a profile's first attempt. Raises ManifestError if a secret would be on its command line."""
    name = re.sub(r"[^a-z0-9-]+", "-", spec.name.lower()).strip("-")[:40] or "run"
    run_dir = f"{RUNS}/{name}"
    launch = build_launch(
        replace(spec, python="python"), run_id=name, run_dir=run_dir, attempt=1, params=spec.params,
        placement=Placement.here((), spec.nproc, ANY_PORT), checkpoint=None,
    )  # fmt: skip
    plan: dict[str, Any] = moved({"argv": list(launch.argv), "env": launch.env}, {spec.workdir: "."})
    redactor = Redactor(secrets_of(spec))
    if redactor.argv(plan["argv"]) != tuple(plan["argv"]):
        raise ManifestError("a secret is on the command line; put it into env: of the profile, so that it is left out")
    env = {key: value for key, value in plan["env"].items() if key not in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")}
    shown = redactor.env(env)
    secrets = tuple(key for key in env if shown[key] != env[key])
    folders = shlex.join(["mkdir", "-p", f"{run_dir}/attempts/1/nodes/0", f"{run_dir}/checkpoints"])
    return PortableJob(
        name, f"{name}-runs", f"{folders}\nexec {shlex.join(plan['argv'])}\n",
        # torchrun's default of --tee: ranks print to the job's log too.
        {**{key: value for key, value in env.items() if key not in secrets}, "PET_TEE": "3"},
        secrets, spec.workdir, spec.gpus.count, gpu_type, image,
    )  # fmt: skip
