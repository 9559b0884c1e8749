"""The options that all kinds of targets share. Each key of targets.yaml is one field."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from gputui.core.yaml_forms.forms import Model, expected
from gputui.core.yaml_forms.quantities import parse_duration, parse_size


def matching(pattern: str, what: str) -> AfterValidator:
    """A validator of text that matches ``pattern`` as a whole, and is ``what``."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise expected(what)
        return text

    return AfterValidator(check)


Line = Annotated[str, matching(r"[^\n\r\x00]{1,1000}", "text in one line")]

Word = Annotated[str, matching(r"[A-Za-z0-9_./:@%+=,~\[\]-]{1,200}", "a name without blanks")]
"""A name of a scheduler or host, without blanks and shell characters."""

Host = Annotated[Word, matching(r"[^-].*", "a host name, which does not begin with -")]
"""A host for ssh and rsync, which would take a leading hyphen for an option."""

Folder = Annotated[Word, matching(r"[^~-].*", "a folder, absolute or below the home directory, without ~")]
Program = Annotated[Line, matching(r"[^~].*", "a path without ~")]
"""A program on a target, where, as for a folder, no shell expands anything."""

PathInside = Annotated[Line, matching(r"(?!/)(?!(.*/)?\.\.(/|$)).*", "a path below the working directory")]
"""An untracked path to send to a target."""


class TargetOptions(Model):
    """Options of a target; unknown keys and other types are errors. The ``kind`` chooses the class."""

    kind: str
    python: Program | None = Field(
        None, description="interpreter of the training environment there; the profile's path if left out"
    )
    setup: list[Line] = Field(
        default_factory=list, description="shell lines there before the command, such as module load cuda"
    )
    folder: Folder = Field("gputui-runs", description="folder of runs there, from the home directory")
    files: list[PathInside] = Field(
        default_factory=list, description="untracked files and folders of the working directory to send, too"
    )
    poll: Annotated[int, Field(ge=1, le=600)] = Field(2, description="seconds between requests")

    def to_json(self) -> dict[str, Any]:
        """The options that were set, and the pause between two questions, as stored with a run."""
        return {**self.model_dump(exclude_unset=True), "poll": self.poll}


def checked_time(text: str) -> str:
    """A duration, or a time in sbatch's form; not 0, which is no limit to sbatch. Raises PydanticCustomError."""
    if not parse_duration(text) and not re.fullmatch(r"(?=.*[1-9])([0-9]+-)?[0-9]{1,4}(:[0-5]?[0-9]){0,2}", text):
        raise expected("a time such as 4h, 1h30m, 2d or 1-12:00:00")
    return text


def sbatch_memory(text: str) -> str:
    """A size in sbatch's form, whose units are binary: ``64G`` stays, ``64GB`` is ``61036M``. Raises
    PydanticCustomError."""
    size = parse_size(text)
    if not size and not re.fullmatch(r"0*[1-9][0-9]{0,11}[KMGT]?", text, re.I):
        raise expected("a size such as 64G or 400GiB")
    if not size:
        return text
    return f"{-(-size >> 20)}M"


class SlurmOptions(TargetOptions):
    """The job's demands on the cluster, by sbatch's own names where it has one.

    ``host`` and ``config``, like ``folder`` and ``files``, are for a cluster that is reached by SSH.
    """

    kind: Literal["slurm"]
    host: Host | None = Field(None, description="login node to reach by SSH; this machine if left out")
    config: Line | None = Field(None, description="with host: SSH configuration, if not ~/.ssh/config")
    partition: Word | None = Field(None, description="partition, or several with commas")
    account: Word | None = Field(None, description="account that pays")
    qos: Word | None = Field(None, description="quality of service")
    constraint: Line | None = Field(None, description="features that each node must have")
    time: Annotated[str, AfterValidator(checked_time)] | None = Field(
        None, description="limit of one start: 4h, 1h30m, 2d or 1-12:00:00; the partition's if left out"
    )
    gpu_type: Word | None = Field(None, description="type of GPU: gres gpu:TYPE:N")
    nodes: Annotated[int, Field(ge=1, le=1024)] = Field(
        1, description="nodes, each with the GPUs and processes of the run"
    )
    cpus: Annotated[int, Field(ge=1, le=4096)] | None = Field(None, description="cores on each node")
    memory: Annotated[str, AfterValidator(sbatch_memory)] | None = Field(
        None, description="host memory on each node, such as 64G"
    )
    exclude: Word | None = Field(None, description="nodes to avoid")
    warn: Annotated[int, Field(ge=10, le=65535)] = Field(
        120, description="seconds before the limit at which the run saves"
    )
    options: list[Line] = Field(default_factory=list, description="other options of sbatch, each as --name=value")
    poll: Annotated[int, Field(ge=1, le=600)] = Field(5, description="seconds between requests")


class SshOptions(TargetOptions):
    """The connection to the machine, and the folder of its files."""

    kind: Literal["ssh"]
    host: Host = Field(description="host, user@host, or a name of ~/.ssh/config")
    config: Line | None = Field(None, description="SSH configuration, if not ~/.ssh/config")
    gpus: Word | None = Field(None, description="CUDA_VISIBLE_DEVICES there; all GPUs if left out")


_ADDRESS = matching(r"https?://[A-Za-z0-9_.\-\[\]:]+(/[A-Za-z0-9_./~-]*)?", "an address such as http://head:8265")


class RayOptions(TargetOptions):
    """The connection to the cluster, and the job's demands on it."""

    kind: Literal["ray"]
    address: Annotated[str, _ADDRESS] = Field(description="dashboard, such as http://head:8265")
    token_file: Line | None = Field(None, description="file with the cluster's token; ~/.ray/auth_token if left out")
    shared: bool = Field(
        False, description="nodes see gputui's home and the code under the same paths; nothing is copied"
    )
    cpus: Annotated[int, Field(ge=0, le=4096)] | None = Field(None, description="cores of the job")
    memory_bytes: Annotated[int, Field(ge=1)] | None = Field(None, description="host memory of the job, in bytes")
    resources: dict[Word, float] = Field(default_factory=dict, description="custom resources, each with its amount")


OPTIONS: dict[str, type[TargetOptions]] = {"slurm": SlurmOptions, "ray": RayOptions, "ssh": SshOptions}
