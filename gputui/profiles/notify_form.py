"""The YAML of ``notify.yaml`` as a pydantic model: the recipients of messages.

- to: ntfy://my-topic
- to: mail -s gputui me@example.org
  events: [run_failed, run_succeeded]
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from gputui.core.yaml_forms.file import given_twice, parse_file, problem_at
from gputui.core.yaml_forms.forms import Model, findings, problem
from gputui.core.yaml_forms.problems import ProfileError
from gputui.runs.notices import DEFAULT_EVENTS, NoticeEvent, Recipient
from gputui.store.events import Severity

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def _to(recipient: object) -> object:
    # Both forms may contain secrets, so neither is shown.
    command = recipient
    if isinstance(recipient, str):
        try:
            command = shlex.split(recipient)
        except ValueError:
            raise problem("the command has an open quote") from None
    if isinstance(command, list) and command and isinstance(command[0], str) and _SCHEME.match(command[0]):
        # apprise takes several addresses in one text, but each is a recipient with messages of its own.
        if not isinstance(recipient, str) or len(recipient.split()) > 1:
            raise problem("an address has no spaces: write %20 for one, and an entry for each address")
        return recipient.strip()
    if (
        not isinstance(command, list)
        or not command
        or not all(isinstance(word, str) and "\0" not in word for word in command)
    ):
        raise problem("expected an address such as ntfy://my-topic, or a command such as mail -s gputui me@example.org")
    return tuple(command)


class RecipientForm(Model):
    """A recipient of messages."""

    to: Annotated[str | tuple[str, ...], BeforeValidator(_to)] = Field(
        description="an address of [apprise](https://appriseit.com/services/), or a command"
    )
    events: list[NoticeEvent] = Field(list(DEFAULT_EVENTS), min_length=1, description="what to tell of")
    min_severity: Severity = Field("error", description="of alerts: the lowest severity to tell of")


def read_recipients(text: str, path: Path) -> tuple[Recipient, ...]:
    """The recipients in a file's text. Raises ProfileError with every problem."""
    document = parse_file(text, path, lambda place: len(place) > 2 and place[1] == "to")
    entries: Any = []
    if document.data is not None:
        entries = document.data
    if not isinstance(entries, list):
        raise ProfileError(
            [problem_at(path, document, (), problem="expected a list of recipients, each beginning with - to:")]
        )
    problems = given_twice(path, document)
    recipients = []
    for index, entry in enumerate(entries):
        try:
            form = RecipientForm.model_validate(entry)
        except ValidationError as error:
            problems += [
                problem_at(path, document, (index, *place), **what) for place, what in findings(error, RecipientForm)
            ]
        else:
            recipients.append(Recipient(form.to, tuple(form.events), form.min_severity))
    if problems:
        raise ProfileError(problems)
    return tuple(recipients)
