"""Redaction of the texts in a bundle. Pure.

It is stricter than `gputui.core.redaction`: a name that would be a secret in an environment is one in every text,
addresses of webhooks are removed, and the home directory is shown as ~. Hiding too much does no harm here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gputui.core.redaction import Redactor, redact_named
from gputui.core.secret_patterns import REDACTED, is_secret_parameter, is_secret_variable

_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)[^\s\"']+", re.IGNORECASE)
_ADDRESS_NAMES = ("webhook", "url")


class Scrubber(Redactor):
    """Removes secrets from texts. ``known`` are values that must not appear; ``home`` is shown as ~."""

    def __init__(self, known: Iterable[str] = (), home: str | None = None) -> None:
        super().__init__(known)
        self._home = home if home and home != "/" else None

    def text(self, text: str) -> str:
        """A text, such as a log."""
        text = redact_named(super().text(text), lambda name, value, _: is_secret(name, value))
        return text.replace(self._home, "~") if self._home else text

    def named(self, name: str, value: Any) -> Any:
        """A JSON value with its name."""
        if isinstance(value, str | int) and is_secret(name, str(value)) and value != REDACTED:
            return REDACTED
        shown = self.value(value)
        is_address = isinstance(shown, str) and any(word in name.lower() for word in _ADDRESS_NAMES)
        return _URL.sub(rf"\g<scheme>{REDACTED}", shown) if is_address else shown

    def value(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(name): self.named(str(name), item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            words = self.argv(value) if all(isinstance(item, str) for item in value) else value
            return [self.value(item) for item in words]
        return super().value(value)


def is_secret(name: str, value: str) -> bool:
    """Whether the name of an environment variable or parameter indicates a secret."""
    plain = name.replace("-", "_")
    return bool(value) and (is_secret_variable(plain, value) or is_secret_parameter(plain))
