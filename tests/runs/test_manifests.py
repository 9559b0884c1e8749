"""A profile as a job of other systems. KubeRay's is checked against a part of its own schema."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gputui.runs.manifests import MANIFESTS
from tests.machines import Machine
from tests.texts import mentions

SCHEMA = json.loads(Path(__file__).with_name("rayjob_schema.json").read_text())["schema"]
TYPES = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}


def mistakes(value: Any, schema: Mapping[str, Any], place: str = "") -> Iterator[str]:
    """The parts of a manifest that a cluster would refuse or drop."""
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, int | str) or not re.fullmatch(schema.get("pattern", ".*"), str(value)):
            yield f"{place}: {value!r}"
        return
    kind = TYPES[schema.get("type", "object")]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        yield f"{place}: {value!r} is no {schema['type']}"
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from mistakes(entry, schema["items"], f"{place}[{number}]")
    elif isinstance(value, dict) and ("properties" in schema or "additionalProperties" in schema):
        properties = schema.get("properties", {})
        yield from (f"{place}.{name} is missing" for name in schema.get("required", ()) if name not in value)
        for name, entry in value.items():
            if name not in properties and "additionalProperties" not in schema:
                yield f"{place}.{name} is not known"
            else:
                yield from mistakes(entry, properties.get(name) or schema["additionalProperties"], f"{place}.{name}")
    elif schema.get("enum") and value not in schema["enum"]:
        yield f"{place}: {value!r} is none of {schema['enum']}"


def profile(machine: Machine, launcher: str = "torchrun", **more: Any) -> str:
    workdir = machine.folder / "my code"
    workdir.mkdir(exist_ok=True)
    (workdir / "train.py").write_text("")
    content = {
        "name": "My_Steps", "launcher": launcher, "script": "train.py", "workdir": str(workdir), "gpus": 2,
        "python": sys.executable, "params": {"steps": 50, "note": "it's", "data": f"{workdir}/data"},
        "env": {"WANDB_API_KEY": "0123456789abcdef0123", "NCCL_DEBUG": "INFO"}, **more,
    }  # fmt: skip
    path = workdir / "steps.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return str(path)


def written(machine: Machine, system: str, *arguments: str, **more: Any) -> tuple[str, Any]:
    text = machine.gputui("profile", "export", profile(machine, **more), "--to", system, *arguments)
    return text, yaml.safe_load(text)


@pytest.mark.parametrize(("launcher", "gpus"), [("torchrun", 2), ("python", 0)])
def test_kuberay_s_holds_against_its_schema(machine: Machine, launcher: str, gpus: int) -> None:
    text, manifest = written(machine, "kuberay", "--image", "me/ray-train:1", "--gpus", str(gpus), launcher=launcher)
    assert list(mistakes(manifest, SCHEMA)) == []
    spec = manifest["spec"]
    worker = spec["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]
    gpu_limit = worker.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", 0)
    assert spec.get("entrypointNumGpus", 0) == gpus == gpu_limit
    secret = {"secretKeyRef": {"name": "my-steps", "key": "WANDB_API_KEY"}}
    assert {"name": "WANDB_API_KEY", "valueFrom": secret} in worker["env"]
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", manifest["metadata"]["name"])
    assert mentions(text, "kubectl create secret", "my-steps")


@pytest.mark.parametrize("system", sorted(MANIFESTS))
def test_none_holds_a_secret_or_a_path_of_this_machine_but_the_code_s(machine: Machine, system: str) -> None:
    text, manifest = written(machine, system, "--image", "me/train:1", "--gpu-type", "H100")
    assert "0123456789abcdef0123" not in text
    assert sys.executable not in text
    code_paths = {"skypilot": [manifest.get("workdir")], "dstack": manifest.get("files", []), "kuberay": []}[system]
    count = code_paths[0] if code_paths else "\0"
    assert str(machine.folder) not in text.replace(count, "")


@pytest.mark.parametrize("system", sorted(MANIFESTS))
def test_the_command_is_one_that_a_shell_runs_as_it_was_meant(machine: Machine, system: str, tmp_path: Path) -> None:
    _, manifest = written(machine, system, "--image", "me/train:1", "--gpu-type", "H100", launcher="python")
    script = {
        "kuberay": lambda: manifest["spec"]["entrypoint"],
        "skypilot": lambda: manifest["run"],
        "dstack": lambda: manifest["commands"][0],
    }[system]()
    program = tmp_path / "bin" / "python"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    runs = tmp_path / "runs"
    done = subprocess.run(
        ["sh", "-c", script.replace("/runs/", f"{runs}/")],
        env={"PATH": f"{program.parent}:/usr/bin:/bin"}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["./train.py", "--steps", "50", "--note", "it's", "--data", "./data"]
    assert (runs / "my-steps" / "checkpoints").is_dir()


def test_skypilot_and_dstack_have_the_gpus_the_image_and_the_environment(machine: Machine) -> None:
    _, sky = written(machine, "skypilot", "--image", "me/train:1", "--gpu-type", "H100")
    assert sky["resources"] == {"accelerators": "H100:2", "image_id": "docker:me/train:1"}
    assert sky["envs"]["NCCL_DEBUG"] == "INFO"
    assert sky["secrets"] == {"WANDB_API_KEY": None}
    _, task = written(machine, "dstack", "--gpus", "1")
    assert task["resources"] == {"gpu": {"count": 1}}
    assert task["type"] == "task"
    assert "NCCL_DEBUG=INFO" in task["env"]
    assert "WANDB_API_KEY" in task["env"]
    assert "it's" in shlex.split(task["commands"][0])
