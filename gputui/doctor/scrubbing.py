"""What leaves this machine in a bundle, with the secrets taken out; pure.

A secret is known by its look (`runs.redaction`), by the name before it (``api_key=…``, ``"HF_TOKEN": "…"``,
``--password …``), and by being the value of a secret that this machine knows. To hide too much is no harm here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gputui.runs.redaction import REDACTED, redact, redact_argv, redact_params, redact_text

# A shorter one would also be found in words that have nothing to do with it.
SHORTEST_SECRET = 6

_ASSIGNED = re.compile(
    r"(?P<name>[A-Za-z_][\w.-]*)(?P<between>[\"']?\s*[=:]\s*)"
    r"(?P<value>\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\s\"',;}\]]+)"
)
_OPTION = re.compile(r"(?P<name>--?[A-Za-z][\w.-]*)(?P<between>[\"',]*\s+[\"']?)(?P<value>[^\s\"'-][^\s\"',\]]*)")
_SCHEME = re.compile(r"(?P<scheme>\b(?:bearer|basic)\s+)[^\s\"',;]+", re.IGNORECASE)
_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)[^\s\"']+", re.IGNORECASE)
_ADDRESS_NAMES = ("webhook", "url")


class Scrubber:
    """Takes secrets out of texts. ``secrets`` are values that must not appear anywhere; ``home`` is shown as ~."""

    def __init__(self, secrets: Iterable[str] = (), home: str | None = None) -> None:
        # The longest first: one secret may begin with another.
        self._secrets = sorted({each for each in secrets if len(each) >= SHORTEST_SECRET}, key=len, reverse=True)
        self._home = home if home and home != "/" else None

    def text(self, text: str) -> str:
        """A text such as a log."""
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        text = redact_text(text)
        text = _SCHEME.sub(rf"\g<scheme>{REDACTED}", text)
        text = _OPTION.sub(self._replaced, _ASSIGNED.sub(self._replaced, text))
        return text.replace(self._home, "~") if self._home else text

    def value(self, value: Any, name: str = "") -> Any:
        """A JSON value; ``name`` is the key that it stands under."""
        if isinstance(value, Mapping):
            return {str(key): self.value(each, str(key)) for key, each in value.items()}
        if isinstance(value, list | tuple):
            if value and all(isinstance(each, str) for each in value):
                return [self.value(each, name) for each in redact_argv(value)]
            return [self.value(each, name) for each in value]
        if isinstance(value, str):
            if is_secret(name, value):
                return REDACTED
            shown = self.text(value)
            is_address = any(word in name.lower() for word in _ADDRESS_NAMES)
            return _URL.sub(rf"\g<scheme>{REDACTED}", shown) if is_address else shown
        return REDACTED if isinstance(value, int) and is_secret(name, str(value)) else value

    @staticmethod
    def _replaced(found: re.Match[str]) -> str:
        name, value = found["name"], found["value"]
        bare = value.strip("\"'")
        if not is_secret(name.lstrip("-"), bare):
            return found[0]
        quote = value[0] if value[0] in "\"'" else ""
        return f"{name}{found['between']}{quote}{REDACTED}{quote}"


def is_secret(name: str, value: str) -> bool:
    """By its name, as of an environment variable or of a parameter."""
    if not value or value == REDACTED:
        return False
    return redact({name.replace("-", "_"): value})[name.replace("-", "_")] == REDACTED or (
        redact_params({name: value})[name] == REDACTED
    )


def secrets_among(values: Mapping[str, Any]) -> set[str]:
    """The values of an environment or of parameters that are secret by their names."""
    return {value for name, value in values.items() if isinstance(value, str) and is_secret(name, value)}


def secrets_of_argv(argv: Sequence[str]) -> set[str]:
    """The words of a command line that are secret, by the option before them or by their look."""
    pairs = zip(argv, redact_argv(argv), strict=True)
    return {word.partition("=")[2] or word for word, shown in pairs if word != shown}
