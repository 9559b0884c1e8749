"""The options that all kinds of targets share. Each key of targets.yaml is one field."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from gputui.core.yaml_forms.forms import Model, expected


def matching(pattern: str, what: str) -> AfterValidator:
    """A validator of text that matches ``pattern`` as a whole, and is ``what``."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise expected(what)
        return text

    return AfterValidator(check)


Line = Annotated[str, matching(r"[^\n\r\x00]{1,1000}", "text in one line")]
"""Text in one line."""

Word = Annotated[str, matching(r"[A-Za-z0-9_./:@%+=,~\[\]-]{1,200}", "a name without blanks")]
"""A name of a scheduler or host, without blanks and shell characters."""

Host = Annotated[Word, matching(r"[^-].*", "a host name, which does not begin with -")]
"""A host for ssh and rsync, which would take a leading hyphen for an option."""

Folder = Annotated[Word, matching(r"[^~-].*", "a folder, absolute or below the home directory, without ~")]
"""A folder on a target, where no shell expands anything."""

Inside = Annotated[Line, matching(r"(?!/)(?!(.*/)?\.\.(/|$)).*", "a path below the working directory")]
"""An untracked path to send to a target."""


class TargetOptions(Model):
    """Options of a target; unknown keys and other types are errors."""

    kind: str
    python: Line | None = Field(None, description="the interpreter of the training environment there")
    setup: list[Line] = Field(default_factory=list, description="shell lines that run there before the command")

    def to_json(self) -> dict[str, Any]:
        """The options that were set, as stored with a run."""
        return self.model_dump(exclude_unset=True)
