"""The documentation says what the rules say."""

from __future__ import annotations

from docs.alert_tables import PAGE, updated

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_rules() -> None:
    assert updated(TEXT) == TEXT, "python -m docs.alert_tables"
