"""`gputui notify`: who is told of what, and a test message."""

from __future__ import annotations

import socket
import sys

from gputui.core.yaml_forms.problems import shown_path
from gputui.profiles.home_files import load_recipients
from gputui.runs import notices
from gputui.runs.notices import PendingMessage, Recipient
from gputui.ui.cli.context import Exit, Session, fail, listing, print_json, print_table, say


@listing("notify")
def command(session: Session, as_json: bool) -> None:
    """List who is told of what by notify.yaml, and what could not be sent."""
    recipients = recipients_of(session)
    unsent = notices.pending(session.reader_or_empty())
    if as_json:
        print_json([_shape(recipient, unsent) for recipient in recipients])
        return
    rows = [(recipient.label, str(_unsent_count(recipient, unsent)), _events(recipient)) for recipient in recipients]
    print_table(("WHO", "UNSENT", "TOLD OF"), rows)
    for recipient in recipients:
        problem = notices.problem_of(recipient, unsent)
        if problem is not None:
            say(f"{recipient.label}: {problem}")
    say("gputui notify test sends everybody a message")


@command.verb("test", changes=True, has_json=True)
def test(session: Session, as_json: bool) -> None:
    """Send a test message to everybody in notify.yaml."""
    from gputui.agent.notify.messages import trial_message
    from gputui.agent.notify.sender import Delivery, send

    message = trial_message(socket.gethostname())
    results = []
    addresses = {recipient.to: recipient for recipient in recipients_of(session)}
    for recipient in addresses.values():
        receipt = send(Delivery(recipient, message))
        results.append({"to": recipient.label, "sent": not receipt.unsent, "problem": receipt.problem})
        if not as_json:
            sign = "✗" if receipt.unsent else "✓"
            say(f"{sign} {recipient.label}: {receipt.problem or 'sent'}")
    if as_json:
        print_json(results)
    if any(not result["sent"] for result in results):
        sys.exit(Exit.RUN_FAILED)


def recipients_of(session: Session) -> tuple[Recipient, ...]:
    """The recipients in notify.yaml; ends the command without any, or with one line per problem."""
    session.need_own_settings()
    path = session.workspace.notify
    recipients = load_recipients(path)
    if not recipients:
        fail(f"nobody is told of anything: write {shown_path(path)}, such as - to: ntfy://my-topic", Exit.REFUSED)
    return recipients


def _shape(recipient: Recipient, unsent: list[PendingMessage]) -> dict[str, object]:
    return {
        "to": recipient.label,
        "events": list(recipient.events),
        "min_severity": recipient.min_severity,
        "unsent": _unsent_count(recipient, unsent),
        "problem": notices.problem_of(recipient, unsent),
    }


def _unsent_count(recipient: Recipient, unsent: list[PendingMessage]) -> int:
    return sum(message.recipient == recipient.digest for message in unsent)


def _events(recipient: Recipient) -> str:
    """``run_failed, alert (error)``."""
    if recipient.events == notices.EVENTS and recipient.min_severity == "info":
        return "everything"
    phrases = {"alert": f"alert ({recipient.min_severity})"}
    return ", ".join(phrases.get(event, event) for event in recipient.events)
