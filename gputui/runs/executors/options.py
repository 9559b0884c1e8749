"""What every target says, whatever its kind: one key of targets.yaml, one field."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from gputui.yaml_forms.forms import Model, expected


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
"""A name as schedulers and host names have it, without blanks and shell characters."""

Host = Annotated[Word, matching(r"[^-].*", "a host name, which does not begin with -")]
"""A host as ssh and rsync take it; what begins with a hyphen would be an option to them."""


Folder = Annotated[Word, matching(r"[^~-].*", "a folder, absolute or below the home directory, without ~")]
"""A folder on a target, where no shell expands anything."""

Inside = Annotated[Line, matching(r"(?!/)(?!(.*/)?\.\.(/|$)).*", "a path below the working directory")]
"""What is sent to a target besides what git knows."""


class TargetOptions(Model):
    """Exactly the keys of its fields, each of exactly its type."""

    kind: str
    python: Line | None = Field(None, description="the interpreter of the training environment there")
    setup: list[Line] = Field(default_factory=list, description="shell lines that run there before the command")

    def to_json(self) -> dict[str, Any]:
        """Only what was given, as it is stored with a run."""
        return self.model_dump(exclude_unset=True)
