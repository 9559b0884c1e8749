"""The effective alert rules: the standard ones, changed by the machine's ``alerts.yaml`` and by a run's profile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from gputui.core.config import file_identity
from gputui.recovery.alerts.overrides import Delivery, Overrides
from gputui.recovery.alerts.resolved_rules import RuleSet, standard, with_overrides

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0


class RunRules(Struct, frozen=True):
    """The rules for one run and its GPUs, and its profile's changes."""

    rules: RuleSet
    profile: Overrides


@dataclass(slots=True)
class AlertSettings:
    """Reloads the rules when ``path``, the machine's file, changes. An invalid file leaves the rules unchanged, and
    ``report`` gets a sentence for the user."""

    path: Path
    report: Callable[[str], None]
    machine: RuleSet = field(default_factory=standard)
    delivery: Delivery | None = None
    runs: dict[str, RunRules] = field(default_factory=dict)
    due: float = float("-inf")
    read: tuple[int, int, int] | None = None

    def turn(self, now: float) -> bool:
        """Reload the file if it has changed; ``now`` is monotonic. True if the rules have changed."""
        if now < self.due:
            return False
        self.due = now + LOOK_SECONDS
        found = file_identity(self.path)
        if found == self.read:
            return False
        # A machine without the file needs no YAML parser.
        from gputui.core.yaml_forms.problems import ProfileError
        from gputui.profiles.home_files import load_alerts

        try:
            overrides = load_alerts(self.path)
        except ProfileError as error:
            self.report(f"{error.problems[0]}; the alert rules stay as they were")
            log.warning("%s", error)
            self.read = found
            return False
        self.read = found
        self.machine = with_overrides(standard(), overrides.rules, self.path.name)
        self.delivery = overrides.delivery
        self.runs = {run_id: rules_for(self.machine, one.profile) for run_id, one in self.runs.items()}
        return True

    def of_run(self, run_id: str, read: Callable[[], Overrides]) -> RunRules:
        """The rules for a run; ``read`` returns its profile's changes and is called once."""
        cached = self.runs.get(run_id)
        if cached is None:
            cached = self.runs[run_id] = rules_for(self.machine, read())
        return cached

    def keep_only(self, runs: Collection[str]) -> None:
        for gone in [run_id for run_id in self.runs if run_id not in runs]:
            del self.runs[gone]


def rules_for(machine: RuleSet, own: Overrides) -> RunRules:
    """The machine's rules with a profile's changes."""
    return RunRules(with_overrides(machine, own.rules, "profile"), own)
