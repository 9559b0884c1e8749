"""What must not leave a run's own files: the secrets of its specification and of the environment that it inherits."""

from __future__ import annotations

import contextlib
import logging
import os

from gputui.config import Workspace
from gputui.redaction import Redactor, secrets_in
from gputui.runs.redaction import secrets_of
from gputui.runs.spec import SpecError
from gputui.runs.submission import SPEC_FILE, read_spec


def redactor_of(workspace: Workspace, run_id: str) -> Redactor:
    """Knows the secrets of one run: its script may print them wherever it likes. Of a run whose specification cannot be
    read, those of the environment are known."""
    known = secrets_in(os.environ, {})
    with contextlib.suppress(SpecError):
        known |= secrets_of(read_spec(workspace.run_dir(run_id) / SPEC_FILE))
    return Redactor(known)


class HidingFormatter(logging.Formatter):
    """Lines of the agent's log without the secrets of its environment, tracebacks included."""

    def __init__(self, pattern: str, date_pattern: str) -> None:
        super().__init__(pattern, date_pattern)
        self._redactor = Redactor(secrets_in(os.environ, {}))

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor.text(super().format(record))
