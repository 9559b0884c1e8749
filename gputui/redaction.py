"""What must not be shown or stored: secrets in environments, parameters, command lines and texts.

Pure. A secret is known by the name that it goes by (``HF_TOKEN``, ``--api-key``), by its own look (``hf_…``,
``AKIA…``), and, to a `Redactor`, by being a value that must not appear anywhere. The true values live only in the
run's own files, readable by their owner; everything that goes into the database, a log or a terminal passes through
here first. Doing it twice changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

Value = TypeVar("Value")

REDACTED = "[redacted]"

_COMMAND_LINE_BYTES = 16 << 10

# A shorter one would also be found in words that have nothing to do with it.
SHORTEST_SECRET = 6

# Environment: to hide too much costs nothing but a word in a list. TOKENIZERS_PARALLELISM is not a token.
_ENV_NAME = re.compile(
    r"SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|APIKEY|AUTHORIZATION|TOKEN(?!I[ZS])|KEYS?(?=[_.-]|$)"
    r"|(?:^|[_.-])(?:PG|DB)?PASS$|(?:^|[_.-])(?:PAT|DSN|COOKIE)$|CONNECTION_?STRING|(?:^|[_.-])WEBHOOK"
)

# Parameters and options: pad_token, user_token and sort_key are daily words of training, so a "token" or "key" among
# other words is not enough.
_PARAMETER_NAME = re.compile(
    r"secret|password|passwd|passphrase|credential|apikey|authorization|connection[_.-]?string"
    r"|^token$"
    r"|(?:^|[_.-])(?:api|access|private|auth|signing|encryption|account|shared|license|wandb|hf)[_.-]?keys?$"
    r"|(?:^|[_.-])(?:api|access|auth|bearer|refresh|session|security|secret|hub|hf|huggingface|wandb|mlflow|comet|neptune"
    r"|github|gh|gitlab|slack)[_.-]?tokens?$"
    r"|(?:^|[_.-])(?:db|pg|user|http|smtp)[_.-]?pass$|amz-signature$|(?:^|[_.-])webhook(?:[_.-]?url)?$"
)

# Each begins at a word's edge and is as long as its issuer makes it, so that ordinary words are left alone.
_SECRET_TEXT = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{20,}"  # Hugging Face
    r"|sk-(?=[a-z0-9_-]*[A-Z])(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{20,}"  # OpenAI, Anthropic and their like
    r"|[rs]k_(?:live|test)_[A-Za-z0-9]{16,}"  # Stripe
    r"|wandb_v[0-9]+_[A-Za-z0-9_]{20,}"  # Weights & Biases; its older keys are 40 hexadecimal digits, as commits are
    r"|nvapi-[A-Za-z0-9_-]{20,}|gsk_[A-Za-z0-9]{20,}|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{40,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
    r"|glpat-[A-Za-z0-9_-]{20,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}"  # AWS access key id
    r"|AIza[0-9A-Za-z_-]{30,}"  # Google
    r"|xox[abeprs]-[0-9A-Za-z-]{10,}"  # Slack
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"  # a JSON web token
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)"
    r")",
    re.DOTALL,
)

# scheme://user:password@host
_URL_PASSWORD = re.compile(r"(?P<before>[A-Za-z][A-Za-z0-9+.-]*://[^/\s:@'\"]*:)(?P<password>[^/\s@'\"]+)(?=@)")

# Whoever knows the rest of such an address may write there.
_HOOK = re.compile(r"(?P<before>https://(?:hooks\.slack\.com|discord(?:app)?\.com/api/webhooks)/)[^\s\"'<>)]+")

# "bearer" is no word of training, "basic" and "token" are.
_SCHEME = re.compile(
    r"(?P<before>\bbearer\s+|\bauthorization\W{1,6}(?:basic|token|digest)\s+)(?!\[redacted)[^\s\"',;]+"
    r"|(?P<before_basic>\bbasic\s+)(?=\S*[0-9])[A-Za-z0-9+/=]{12,}",
    re.IGNORECASE,
)

# Quoted, quoted within quotes, cut off, or up to where words end. What is hidden beyond the secret is no loss.
_VALUE = re.compile(
    r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'"
    r"|\\+[\"'][^\"'\\\n]*|[\"'][^\"'\n]*|[^\s\"',;&\\][^\s\"',;&]*"
)
# name=value, name: value, "name": "value", environ["name"] = "value"
_ASSIGNED = re.compile(r"(?<![\w.-])(?P<name>[A-Za-z_][\w.-]{2,79}+)(?P<between>(?:\\*[\"'])?\]?\s{0,3}+[=:]\s{0,3}+)")
# --name value
_OPTION = re.compile(r"(?<![\w-])(?P<name>--?[A-Za-z][\w.-]{1,79}+)(?P<between>[\"',]*+\s++)(?!-)")


class Redactor:
    """Takes secrets out of what it is given, those by name and look and ``known``, the values that must not appear."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        texts = {each for each in known if len(each) >= SHORTEST_SECRET and REDACTED not in each}
        # The longest first: one secret may begin with another.
        ordered = sorted(texts, key=lambda each: (-len(each), each))
        self._known = re.compile("|".join(re.escape(each) for each in ordered)) if ordered else None
        self.known = frozenset(texts)

    def without_known(self, text: str) -> str:
        """The text without the known values only."""
        return text if self._known is None else self._known.sub(REDACTED, text)

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
        """Plain data that stands under a name."""
        return REDACTED if isinstance(value, str) and value and is_secret_parameter(name) else self.value(value)

    def value(self, value: Any) -> Any:
        """Plain data, as JSON gives it, with every text in it redacted; what stands under a secret name vanishes."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                name: REDACTED
                if isinstance(item, str) and item and is_secret_parameter(str(name))
                else self.value(item)
                for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            if all(isinstance(item, str) for item in value):
                return list(self.argv(value))
            return [self.value(item) for item in value]
        return value


BY_LOOK = Redactor()
"""Knows no values: for texts that belong to no run."""


def redact_text(text: str) -> str:
    """The text with everything in it that looks like a secret, or stands behind a name of one, replaced."""
    text = _SECRET_TEXT.sub(REDACTED, text)
    if "://" in text:
        text = _HOOK.sub(rf"\g<before>{REDACTED}", _URL_PASSWORD.sub(rf"\g<before>{REDACTED}", text))
    text = _SCHEME.sub(lambda found: f"{found['before'] or found['before_basic']}{REDACTED}", text)
    return redact_named(text, _is_named)


def redact_named(text: str, is_secret: Callable[[str, str, bool], bool]) -> str:
    """The text without the values that stand behind names in it: ``name=value``, ``"name": "value"``, ``--name value``.

    ``is_secret`` is asked with the name, the value, and whether the name may be a word of a sentence (``name: value``).
    """

    if "=" in text or ":" in text:
        text = _without_named(_ASSIGNED, text, is_secret)
    return _without_named(_OPTION, text, is_secret) if "-" in text else text


def _without_named(head: re.Pattern[str], text: str, is_secret: Callable[[str, str, bool], bool]) -> str:
    """``head`` ends where a value begins. What is no secret's name is passed over alone: behind it may be one
    (``ValueError: password=x``)."""
    pieces, done = [], 0
    for found in head.finditer(text):
        value = _VALUE.match(text, found.end()) if found.start() >= done else None
        if value is None:
            continue
        bare = value[0].strip("\\\"'")
        is_word = found["between"].lstrip().startswith(":")
        if not bare or bare.startswith(REDACTED[:-1]) or not is_secret(found["name"].lstrip("-"), bare, is_word):
            continue
        opening = value[0][: len(value[0]) - len(value[0].lstrip("\\\"'"))]
        closing = opening if opening in ("'", '"') and len(value[0]) > 1 and value[0][-1] == opening else ""
        pieces += [text[done : value.start()], opening, REDACTED, closing]
        done = value.end()
    return "".join([*pieces, text[done:]]) if pieces else text


def redact(env: Mapping[str, str]) -> dict[str, str]:
    """An environment as it may be shown: secrets by name vanish whole, those within a value are cut out. An empty
    value stays, for it shows that something is missing."""
    return {
        name: REDACTED if value and is_secret_variable(name, value) else redact_text(value)
        for name, value in env.items()
    }


def redact_params(params: Mapping[str, Value]) -> dict[str, Value]:
    """Parameters as they may be shown. Only text is ever replaced."""
    shown: dict[str, Any] = {
        name: (REDACTED if value and is_secret_parameter(name) else redact_text(value))
        if isinstance(value, str)
        else value
        for name, value in params.items()
    }
    return shown


def redact_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line as it may be shown: ``--api-key X``, ``--api-key=X`` and ``api_key=X`` lose their X."""
    shown: list[str] = []
    hide_next = False
    for token in argv:
        if hide_next and not token.startswith("--"):
            shown.append(REDACTED if token else token)
            hide_next = False
            continue
        name, equals, value = token.partition("=")
        is_name = not any(map(str.isspace, name))
        is_secret = is_name and (
            is_secret_parameter(name.lstrip("-")) or (name.isupper() and is_secret_variable(name, value or "-"))
        )
        hide_next = is_secret and token.startswith("-") and not equals
        shown.append(f"{name}={REDACTED}" if is_secret and equals and value else redact_text(token))
    return tuple(shown)


def redact_command_line(raw: bytes) -> str:
    """The words of /proc/PID/cmdline as one line that may be stored and shown; far more than is shown is looked at."""
    words = raw[:_COMMAND_LINE_BYTES].rstrip(b"\0").decode("utf-8", "replace").split("\0")
    return " ".join(redact_argv(words)).strip()


def secrets_in(env: Mapping[str, str], params: Mapping[str, Any], *argvs: Sequence[str]) -> set[str]:
    """The values in an environment, in parameters and in command lines that must not appear anywhere else: secret by
    their names, or the password in an address. What is known by its look needs no list."""
    found = {value for name, value in env.items() if is_secret_variable(name, value)}
    found |= {value for name, value in params.items() if isinstance(value, str) and is_secret_parameter(name)}
    texts = [*env.values(), *(value for value in params.values() if isinstance(value, str))]
    for argv in argvs:
        texts += argv
        pairs = zip(argv, redact_argv(argv), strict=True)
        found |= {
            word if shown == REDACTED else word.partition("=")[2] for word, shown in pairs if shown.endswith(REDACTED)
        }
    for text in texts:
        found |= {match["password"] for match in _URL_PASSWORD.finditer(text)}
    return {each for each in found if len(each) >= SHORTEST_SECRET and "{" not in each and REDACTED not in each}


def is_secret_variable(name: str, value: str) -> bool:
    """Whether the value of an environment variable is to be hidden, by its name."""
    upper = name.upper()
    if not value or (upper.endswith("TOKENS") and value.isdigit()):
        return False
    return _ENV_NAME.search(upper) is not None


def is_secret_parameter(name: str) -> bool:
    """Whether the value of a parameter or an option is to be hidden, by its name."""
    return _PARAMETER_NAME.search(name.lower()) is not None


def _is_named(name: str, value: str, is_word: bool) -> bool:
    if name.isupper():
        return is_secret_variable(name, value)
    return is_secret_parameter(name) and not (is_word and name.lower() == "token")
