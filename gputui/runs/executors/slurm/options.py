"""The keys of a target of kind slurm."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from gputui.core.yaml_forms.forms import expected
from gputui.core.yaml_forms.quantities import parse_size
from gputui.runs.executors.options import Folder, Host, Inside, Line, TargetOptions, Word, matching

_TIME = matching(r"(\d+-)?\d{1,4}(:\d{1,2}){0,2}|\d+(m|h|d)", "a time such as 4h, 30m, 2d or 1-12:00:00")


def sbatch_memory(text: str) -> str:
    """A size in sbatch's form, whose units are binary. Raises PydanticCustomError."""
    size = parse_size(text)
    if size is None and not re.fullmatch(r"[0-9]{1,12}[KMGT]?", text, re.I):
        raise expected("a size such as 64G or 400GiB")
    return text if size is None else f"{-(-size >> 20)}M"


class SlurmOptions(TargetOptions):
    """What is asked of the cluster, by sbatch's own names where it has one."""

    kind: Literal["slurm"]
    host: Host | None = Field(None, description="login node, reached by SSH; this machine if left out")
    config: Line | None = Field(None, description="with host: another file than ~/.ssh/config")
    folder: Folder = Field("gputui-runs", description="with host: where runs lie there, from the home directory")
    files: list[Inside] = Field(
        default_factory=list, description="with host: files and folders of the working directory unknown to git"
    )
    partition: Word | None = Field(None, description="partition, or several with commas between them")
    account: Word | None = Field(None, description="account that pays")
    qos: Word | None = Field(None, description="quality of service")
    constraint: Line | None = Field(None, description="features that the node must have")
    time: Annotated[str, _TIME] | None = Field(
        None, description="limit of one start, such as 4h, 30m, 2d or sbatch's 1-12:00:00; the partition's if left out"
    )
    gpu_type: Word | None = Field(None, description="type of GPU, as in gres gpu:TYPE:N")
    nodes: Annotated[int, Field(ge=1, le=1024)] = Field(
        1, description="number of nodes, each with the GPUs and processes that the run asks for"
    )
    cpus: Annotated[int, Field(ge=1, le=4096)] | None = Field(None, description="cores of the job on each node")
    memory: Annotated[str, AfterValidator(sbatch_memory)] | None = Field(
        None, description="host memory of the job on each node, such as 64G or 400GiB"
    )
    exclude: Word | None = Field(None, description="nodes that must not be used")
    warn: Annotated[int, Field(ge=10, le=65535)] = Field(
        120, description="seconds before the limit at which the run saves and is requeued"
    )
    options: list[Line] = Field(default_factory=list, description="further lines for sbatch, each as --name=value")
    poll: Annotated[int, Field(ge=1, le=600)] = Field(5, description="seconds between two questions to the cluster")
