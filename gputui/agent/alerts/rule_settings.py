"""Which alert rules hold: the standard ones, what the machine's ``alerts.yaml`` changes of them, and what a run's
profile does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from gputui.alerts.overrides import Delivery, Overrides
from gputui.alerts.resolved_rules import RuleSet, standard, with_overrides
from gputui.config import file_identity

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class RunRules:
    """The rules for one run, for the GPUs that it trains on, and what its profile changes of the machine's."""

    rules: RuleSet
    profile: Overrides


@dataclass(slots=True)
class AlertSettings:
    """``path`` is the machine's file; ``tell`` takes a sentence for a person where it cannot be used. A file that is
    wrong changes nothing: what held before holds on."""

    path: Path
    tell: Callable[[str], None]
    machine: RuleSet = field(default_factory=standard)
    delivery: Delivery | None = None
    runs: dict[str, RunRules] = field(default_factory=dict)
    due: float = float("-inf")
    read: tuple[int, int, int] | None = None

    def turn(self, now: float) -> bool:
        """Look whether the file has changed; ``now`` is monotonic. True where other rules hold now."""
        if now < self.due:
            return False
        self.due = now + LOOK_SECONDS
        found = file_identity(self.path)
        if found == self.read:
            return False
        # A machine without the file needs no YAML parser.
        from gputui.profiles.home_files import load_alerts
        from gputui.yaml_forms.problems import ProfileError

        try:
            overrides = load_alerts(self.path)
        except ProfileError as error:
            self.tell(f"{error.problems[0]}; the alert rules stay as they were")
            log.warning("%s", error)
            self.read = found
            return False
        self.read = found
        self.machine = with_overrides(standard(), overrides.rules, self.path.name)
        self.delivery = overrides.delivery
        self.runs = {run_id: rules_for(self.machine, one.profile) for run_id, one in self.runs.items()}
        return True

    def of_run(self, run_id: str, read: Callable[[], Overrides]) -> RunRules:
        """The rules for a run; ``read`` gives what its profile changes, and is asked once."""
        known = self.runs.get(run_id)
        if known is None:
            known = self.runs[run_id] = rules_for(self.machine, read())
        return known

    def keep_only(self, runs: Collection[str]) -> None:
        for gone in [run_id for run_id in self.runs if run_id not in runs]:
            del self.runs[gone]


def rules_for(machine: RuleSet, own: Overrides) -> RunRules:
    """The machine's rules with what a profile changes of them."""
    return RunRules(with_overrides(machine, own.rules, "profile"), own)
