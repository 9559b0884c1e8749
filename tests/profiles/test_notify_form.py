"""``notify.yaml``: what may be written, and mistakes with their places and without secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.core.yaml_forms.problems import ProfileError
from gputui.profiles.notify_form import read_recipients
from gputui.runs.notices import DEFAULT_EVENTS, Recipient
from tests.tables import table

FILE = Path("notify.yaml")


def test_addresses_and_commands() -> None:
    text = """
    - to: ntfy://my-topic
    - to: mail -s "my gputui" me@example.org
      events: [run_failed, run_succeeded]
      min_severity: warning
    - to: [tell, on, 1.10]
    """
    assert read_recipients(text, FILE) == (
        Recipient("ntfy://my-topic", DEFAULT_EVENTS, "error"),
        Recipient(("mail", "-s", "my gputui", "me@example.org"), ("run_failed", "run_succeeded"), "warning"),
        Recipient(("tell", "on", "1.10")),
    )
    assert read_recipients("- to: ' ntfy://x '", FILE) == (Recipient("ntfy://x"),)
    assert read_recipients("", FILE) == read_recipients("# nobody\n", FILE) == ()


@table(
    ("text", "line", "key", "meant"),
    [
        ("to: ntfy://x", 1, "", None),
        ("- ntfy://x", 1, "0", None),
        ("- {events: [alert]}", 1, "0", None),
        ("- to: ntfy://x\n  event: [alert]", 2, "0.event", "events"),
        ("- to: ntfy://x\n- to: ntfy://y\n  events: [run_faild]", 3, "1.events.0", "run_failed"),
        ("- {to: ntfy://x, events: []}", 1, "0.events", None),
        ("- {to: ntfy://x, min_severity: eror}", 1, "0.min_severity", "error"),
        ("- to: ''", 1, "0.to", None),
        ("- to: []", 1, "0.to", None),
        ("- to: 5", 1, "0.to", None),
        ("- to: mail 's3cret", 1, "0.to", None),
        ("- to: mailtos://me:s3cret word@example.org", 1, "0.to", None),
        ("- to: ntfy://x ntfy://y", 1, "0.to", None),
        ("- to: [ntfy://x, ntfy://y]", 1, "0.to", None),
        ("- to: {s3cret: 1}", 1, "0.to", None),
        ("- to: ntfy://x\n  to: ntfy://y", 2, "0.to", None),
    ],
)
def test_a_mistake_has_its_place(text: str, line: int, key: str, meant: str | None) -> None:
    with pytest.raises(ProfileError) as caught:
        read_recipients(text, FILE)
    (problem,) = caught.value.problems
    assert (problem.line, problem.key, problem.nearest) == (line, key, meant)
    assert "s3cret" not in str(problem)


def test_a_digest_stays_with_the_address() -> None:
    recipient = Recipient("ntfy://x")
    second = Recipient("ntfy://y")
    assert recipient.digest == Recipient("ntfy://x", ("alert",), "info").digest != second.digest
    assert (recipient.label, Recipient(("/usr/bin/mail", "me")).label) == ("ntfy", "mail")
