"""What every target says, whatever its kind: one key of targets.yaml, one field."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from gputui.yaml_forms.forms import Model

Line = Annotated[str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\n\r\x00]+$")]
"""Text in one line."""

Word = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_./:@%+=,~\[\]-]+$")]
"""A name as schedulers and host names have it, without blanks and shell characters."""


class TargetOptions(Model):
    """Exactly the keys of its fields, each of exactly its type."""

    kind: str
    python: Line | None = Field(None, description="the interpreter of the training environment there")
    setup: list[Line] = Field(default_factory=list, description="shell lines that run there before the command")

    def to_json(self) -> dict[str, Any]:
        """Only what was given, as it is stored with a run."""
        return self.model_dump(exclude_unset=True)
