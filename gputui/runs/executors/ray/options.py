"""The options of a target of kind ray."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gputui.runs.executors.options import Folder, Inside, Line, TargetOptions, Word, matching

_ADDRESS = matching(r"https?://[A-Za-z0-9_.\-\[\]:]+(/[A-Za-z0-9_./~-]*)?", "an address such as http://head:8265")


class RayOptions(TargetOptions):
    """The cluster's address, the resources to request, and the folder of files."""

    kind: Literal["ray"]
    address: Annotated[str, _ADDRESS] = Field(description="of the cluster's dashboard, such as http://head:8265")
    token_file: Line | None = Field(
        None, description="file with the cluster's token; ~/.ray/auth_token where that is there"
    )
    shared: bool = Field(
        False, description="the cluster's nodes see this home's files under the same paths: nothing is copied"
    )
    folder: Folder = Field(
        "gputui-runs", description="where runs lie on a node, from the home directory; not with shared"
    )
    files: list[Inside] = Field(
        default_factory=list, description="files and folders of the working directory that git does not know"
    )
    cpus: Annotated[int, Field(ge=0, le=4096)] | None = Field(None, description="cores of the job")
    memory_bytes: Annotated[int, Field(ge=1)] | None = Field(None, description="host memory of the job")
    resources: dict[Word, float] = Field(
        default_factory=dict, description="custom resources of the cluster, each with its amount"
    )
    poll: Annotated[int, Field(ge=1, le=600)] = Field(2, description="seconds between two questions to the cluster")
