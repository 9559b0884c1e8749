"""``record.yaml``: how long this machine keeps what is recorded."""

from __future__ import annotations

from pathlib import Path

from gputui.store.retention import Retention


def load_retention(path: Path) -> Retention:
    """What the file says, the standard where it is not there. Raises ProfileError with every problem and its line."""
    if not path.exists():
        return Retention()
    # Most machines have none, and then the agent needs no pydantic.
    from gputui.profiles.record_form import read_retention
    from gputui.yaml_forms.file import read_text

    return read_retention(read_text(path, "file of settings for the record"), path)
