"""``alerts.yaml``: what this machine changes of the alert rules, and how alerts are delivered."""

from __future__ import annotations

from pathlib import Path

from gputui.alerts.overrides import Overrides, overrides_from
from gputui.yaml_forms.file import parse_file, read_text


def load_alerts(path: Path) -> Overrides:
    """What the file says; nothing where it is not there. Raises ProfileError with every problem, each with its line."""
    return read_alerts(read_text(path, "file of alert rules"), path) if path.exists() else Overrides()


def read_alerts(text: str, path: Path) -> Overrides:
    """The same from the file's text. Raises ProfileError."""
    from gputui.profiles.alerts_form import OF_MACHINE, MachineAlertsForm
    from gputui.yaml_forms.forms import validated

    document = parse_file(text, path, lambda place: place[:2] == ("notify", "command") and len(place) > 2)
    validated(document, path, MachineAlertsForm, OF_MACHINE)
    return overrides_from(document.data or {})
