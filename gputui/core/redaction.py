"""Secrets, which are neither shown nor stored, in environments, parameters, command lines and
texts.

Pure. A secret is known by the name that it goes by (``HF_TOKEN``, ``--api-key``), by its own look
(``hf_…``, ``AKIA…``), and, to a `Redactor`, by being a value that must not appear anywhere. The
true values live only in the run's own files, readable by their owner; everything that goes into the
database, a log or a terminal passes through here first. Doing it twice changes nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from gputui.core.secret_patterns import (
    ASSIGNED,
    AUTHORIZATION,
    COOKIE,
    CURL_USER,
    HOOK_ADDRESS,
    MARKED,
    OPTION,
    REDACTED,
    SECRET_TEXT,
    SHORTEST_SECRET,
    SIGNATURE,
    URL_PASSWORD,
    VALUE,
    can_be_found,
    is_secret_in_text,
    is_secret_parameter,
    is_secret_variable,
    known_pattern,
)

Value = TypeVar("Value")

_QUOTES = "\\\"'"
_CURL_USER_OPTIONS = ("-u", "-U", "--user", "--proxy-user")
_COMMAND_LINE_BYTES = 16 << 10  # longer ones are lists of files, and take milliseconds to look through


class Redactor:
    """Takes out secrets by name and look, and the ``known`` values that must not appear."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        texts = {secret for secret in secrets if REDACTED not in secret and can_be_found(secret)}
        # The longest first: one secret may begin with another.
        ordered = sorted(texts, key=lambda secret: (-len(secret), secret))
        self._known = None
        if ordered:
            self._known = re.compile("|".join(map(known_pattern, ordered)))
        self.known = frozenset(texts)

    def without_known(self, text: str) -> str:
        """The text without the known values only."""
        if self._known is None:
            return text
        return self._known.sub(REDACTED, text)

    def text(self, text: str) -> str:
        """A text: a log, a sentence, an address."""
        return redact_text(self.without_known(text))

    def argv(self, argv: Sequence[str]) -> tuple[str, ...]:
        """A command line."""
        return redact_argv([self.without_known(token) for token in argv])

    def env(self, env: Mapping[str, str]) -> dict[str, str]:
        """An environment."""
        return redact({name: self.without_known(value) for name, value in env.items()})

    def named(self, name: str, value: Any) -> Any:
        """Plain data under a name."""
        if isinstance(value, str) and value and is_secret_parameter(name):
            return REDACTED
        return self.value(value)

    def value(self, value: Any) -> Any:
        """Plain data, as JSON gives it, with every text in it redacted."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {name: self.named(str(name), item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            if all(isinstance(item, str) for item in value):
                return list(self.argv(value))
            return [self.value(item) for item in value]
        return value


BY_LOOK = Redactor()
"""Knows no values: for texts that belong to no run."""


def redact_text(text: str) -> str:
    """The text without what looks like a secret, or follows the name of one."""
    return _hide(text, [])


def _hide(text: str, hidden_values: list[str]) -> str:
    """As `redact_text`; ``hidden_values`` gets what was hidden, but for what is known by its look. The work
    grows with the text's length only: whoever writes a log must not be able to stop the agent."""

    def cut(match: re.Match[str]) -> str:
        before: str = next(group for group in match.groups() if group is not None)
        hidden = match[0][len(before) :]
        if not hidden.startswith(REDACTED[:-1]):
            hidden_values.append(hidden)
        return f"{before}{REDACTED}"

    text = SECRET_TEXT.sub(REDACTED, text)
    if "://" in text:
        text = HOOK_ADDRESS.sub(rf"\g<before>{REDACTED}", URL_PASSWORD.sub(cut, text))
    if "=" in text:
        text = SIGNATURE.sub(cut, text)
    if "curl" in text:
        text = CURL_USER.sub(cut, text)
    text = AUTHORIZATION.sub(cut, COOKIE.sub(cut, text))
    return redact_named(text, is_secret_in_text, hidden_values)


def redact_named(text: str, is_secret: Callable[[str, str, bool], bool], hidden_values: list[str] | None = None) -> str:
    """The text without the values after names in it: ``name=value``, ``"name": "value"``, ``--name value``.

    Args:
        is_secret: Gets the name, the value (first a dash), and whether the name may be a mere word (``name: value``).
        hidden_values: Gets the values that were left out.
    """
    hidden: list[str] = []
    if hidden_values is not None:
        hidden = hidden_values
    if "=" in text or ":" in text:
        text = _without_named(ASSIGNED, text, is_secret, hidden)
    if "-" in text:
        return _without_named(OPTION, text, is_secret, hidden)
    return text


def _without_named(
    head: re.Pattern[str], text: str, is_secret: Callable[[str, str, bool], bool], hidden: list[str]
) -> str:
    """``head`` ends where a value begins. What is no secret's name is passed over alone: behind it
    may be one (``ValueError: password=x``)."""
    pieces = []
    done = 0
    for match in head.finditer(text):
        if match.start() < done:
            continue
        value = _secret_behind(match, is_secret)
        if value is None:
            continue
        bare = value[0].strip(_QUOTES)
        opening = value[0][: len(value[0]) - len(value[0].lstrip(_QUOTES))]
        closing = ""
        if opening in ("'", '"') and len(value[0]) > 1 and value[0][-1] == opening:
            closing = opening
        pieces += [text[done : value.start()], opening, REDACTED, closing]
        if head is ASSIGNED or not bare.startswith("--"):
            hidden.append(bare)
        done = value.end()
    if pieces:
        return "".join([*pieces, text[done:]])
    return text


def _secret_behind(match: re.Match[str], is_secret: Callable[[str, str, bool], bool]) -> re.Match[str] | None:
    """The value behind a name in a text, with its quotes; None if there is none, or it is no secret."""
    name = match["name"].lstrip("-")
    is_word = match["between"].lstrip().startswith(":")
    if not is_secret(name, "-", is_word) or MARKED.match(match.string, match.end()):
        return None
    value = VALUE.match(match.string, match.end())
    if value is None:
        return None
    bare = value[0].strip(_QUOTES)
    if not bare or not is_secret(name, bare, is_word):
        return None
    return value


def redact(env: Mapping[str, str]) -> dict[str, str]:
    """An environment as it may be shown: secrets by name vanish whole, those within a value are cut
    out. An empty value stays, for it shows that something is missing."""
    redacted = {}
    for name, value in env.items():
        if value and is_secret_variable(name, value):
            redacted[name] = REDACTED
        else:
            redacted[name] = redact_text(value)
    return redacted


def redact_params(params: Mapping[str, Value]) -> dict[str, Value]:
    """Parameters as they may be shown. Only text is ever replaced."""
    redacted: dict[str, Any] = dict(params)
    for name, value in params.items():
        if isinstance(value, str):
            redacted[name] = BY_LOOK.named(name, value)
    return redacted


def redact_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line as it may be shown: ``--api-key X``, ``api_key=X`` lose their X."""
    return _hide_argv(argv, [])


def _hide_argv(argv: Sequence[str], hidden_values: list[str]) -> tuple[str, ...]:
    """As `redact_argv`; ``hidden_values`` gets what was hidden but what looks like an option."""
    redacted: list[str] = []
    awaits_value = False
    is_curl = False
    previous = ""
    for token, following in zip(argv, [*argv[1:], None], strict=False):
        if awaits_value and _may_be_value(token, following):
            redacted.append(token and REDACTED)
            if not token.startswith("--"):
                hidden_values.append(token)
            awaits_value = False
        else:
            name, equals, _ = token.partition("=")
            awaits_value = token.startswith("-") and not equals and _names_secret(name, "")
            curl_option = previous if is_curl else None
            redacted.append(_hide_token(token, hidden_values, curl_option=curl_option))
            is_curl = is_curl or token.rpartition("/")[2] == "curl"
        previous = token
    return tuple(redacted)


def _may_be_value(token: str, following: str | None) -> bool:
    """Return whether a token behind a secret's option is its value; an option with a value of its own is none."""
    has_own_value = "=" in token or (following is not None and not following.startswith("-"))
    return not (token.startswith("--") and has_own_value)


def _names_secret(name: str, value: str) -> bool:
    """Return whether a token before ``=``, or a whole one, is the name of a secret: an option, a parameter or, in
    capitals, a variable."""
    if any(map(str.isspace, name)):
        return False
    return is_secret_parameter(name.lstrip("-")) or (name.isupper() and is_secret_variable(name, value or "-"))


def _hide_token(token: str, hidden_values: list[str], *, curl_option: str | None) -> str:
    """One token without its secrets; ``curl_option`` is the token before it in a command of curl, None in others."""
    name, equals, value = token.partition("=")
    if equals and value and _names_secret(name, value):
        hidden_values.append(value)
        return f"{name}={REDACTED}"
    if curl_option is not None:
        option = f"{curl_option} " if curl_option in _CURL_USER_OPTIONS else ""
        user = CURL_USER.fullmatch(option + token)
        if user is not None:
            hidden_values.append(user.string[user.end("before") :])
            return f"{user['before'][len(option) :]}{REDACTED}"
    return _hide(token, hidden_values)


def redact_command_line(raw: bytes) -> str:
    """The words of /proc/PID/cmdline as one line that may be stored and shown, quoted as a shell wants them."""
    arguments = redact_argv(raw[:_COMMAND_LINE_BYTES].rstrip(b"\0").decode("utf-8", "replace").split("\0"))
    if len(arguments) == 1:
        # A process that names itself, as "sshd: ada", has one word with spaces.
        return arguments[0].strip()
    return " ".join(map(_quoted, arguments))


def _quoted(word: str) -> str:
    """A word as a shell wants it; the mark in place of a secret asks for no quotes."""
    visible = word.replace(REDACTED, "x")
    if shlex.quote(visible) != visible:
        return shlex.quote(word)
    return word


def secrets_in(env: Mapping[str, str], params: Mapping[str, Any], *argvs: Sequence[str]) -> set[str]:
    """The values in an environment, in parameters and in command lines that must not appear
    anywhere else: secret by their names, or found within a text. What is known by its look needs no
    list."""
    texts = {name: value for name, value in params.items() if isinstance(value, str)}
    candidates = [value for name, value in env.items() if is_secret_variable(name, value)]
    candidates += [value for name, value in texts.items() if is_secret_parameter(name)]
    for text in (*env.values(), *texts.values()):
        _hide(text, candidates)
    for argv in argvs:
        _hide_argv(argv, candidates)
    # A placeholder or a variable of the shell is no value.
    values = {
        candidate
        for candidate in candidates
        if "{" not in candidate and not candidate.startswith("$") and REDACTED not in candidate
    }
    return {value for value in values if len(value) >= SHORTEST_SECRET}
