"""The options of a target of kind ssh."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gputui.runs.executors.options import Folder, Host, Inside, Line, TargetOptions, Word


class SshOptions(TargetOptions):
    """The connection to the machine, and the folder of its files."""

    kind: Literal["ssh"]
    host: Host = Field(description="host, user@host, or a name of ~/.ssh/config")
    config: Line | None = Field(None, description="another file than ~/.ssh/config")
    folder: Folder = Field("gputui-runs", description="where runs lie there, from the home directory")
    files: list[Inside] = Field(
        default_factory=list, description="files and folders of the working directory that git does not know"
    )
    gpus: Word | None = Field(None, description="what CUDA_VISIBLE_DEVICES holds there; all that there are if left out")
    poll: Annotated[int, Field(ge=1, le=600)] = Field(2, description="seconds between two questions to the machine")
