"""The documentation says what the rules say."""

from __future__ import annotations

import re

import pytest

from docs.alert_tables import PAGE, updated
from gputui.alerts.overrides import overrides_from
from gputui.alerts.rules import RULES
from gputui.profiles.alerts_form import OF_MACHINE, AlertsForm, MachineAlertsForm
from gputui.yaml_forms.document import parse

TEXT = PAGE.read_text(encoding="utf-8")
EXAMPLES = [parse(block).data for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)]


def test_the_tables_are_those_of_the_rules() -> None:
    assert updated(TEXT) == TEXT, "python -m docs.alert_tables"


@pytest.mark.parametrize("rule_id", RULES)
def test_every_rule_is_documented_once(rule_id: str) -> None:
    assert TEXT.count(f"| `{rule_id}`:") == 1


def test_the_examples_are_valid() -> None:
    machine, profile = EXAMPLES
    MachineAlertsForm.model_validate(machine, context=OF_MACHINE)
    AlertsForm.model_validate(profile["alerts"])
    found = overrides_from(machine)
    assert found.delivery is not None and found.rules["gpu_parked"]["for_seconds"] == 7200.0
    assert overrides_from(profile["alerts"]).schedule is not None
