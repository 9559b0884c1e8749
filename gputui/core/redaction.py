"""What must not be shown or stored: secrets in environments, parameters, command lines and texts.

Pure. A secret is known by the name that it goes by (``HF_TOKEN``, ``--api-key``), by its own look
(``hf_…``, ``AKIA…``), and, to a `Redactor`, by being a value that must not appear anywhere. The
true values live only in the run's own files, readable by their owner; everything that goes into the
database, a log or a terminal passes through here first. Doing it twice changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

# Environment: to hide too much costs nothing but a word in a list. TOKENIZERS_PARALLELISM is not a
# token.
_ENV_NAME = re.compile(
    r"SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|APIKEY|AUTHORIZATION|TOKEN(?!I[ZS])|KEYS?(?=[_.-]|$)"
    r"|(?:^|[_.-])(?:PG|DB)?PASS$|(?:^|[_.-])(?:PAT|DSN|COOKIE)$|CONNECTION_?STRING|(?:^|[_.-])WEBHOOK"
    r"|[A-Z0-9]_PWD$|[_.-]AUTH$|AUTH_CONFIG$"
)
# Tokens and keys of daily training; what else such a name says still counts.
_DAILY = re.compile(
    r"(?:^|(?<=[_.-]))(?:"
    r"(?:PAD|EOS|BOS|UNK|SEP|CLS|MASK|STOP|END|START|SPECIAL|IMAGE|AUDIO|MAX|MIN|NUM|TOTAL|N)_(?:NEW_)?TOKENS?(?=[_.-]|$)"
    r"|TOKENS?_(?:PER|LEN|LENGTHS?|IDS?|TYPES?|COUNTS?|LIMIT|DIM|SIZE|BUDGET|DROPOUT|MASK|SEEN)(?=[_.-]|$)"
    r"|(?:SORT|PARTITION|SHARD|GROUP|INDEX|LABEL|FEATURE|INPUT|TARGET|TEXT|IMAGE|STATE|MISSING|UNEXPECTED)_KEYS?$)"
)
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?")
# "Missing KEY: layer.0" is a sentence.
_WORDS = frozenset({"token", "TOKEN", "TOKENS", "KEY", "KEYS"})

# Parameters and options: pad_token, user_token and sort_key are daily words of training, so a
# "token" or "key" among other words is not enough.
_PARAMETER_NAME = re.compile(
    r"secret|password|passwd|passphrase|credential|apikey|authorization|connection[_.-]?string"
    r"|^token$"
    r"|(?:^|[_.-])(?:api|access|private|auth|signing|encryption|account|shared|license|wandb|hf)[_.-]?keys?$"
    r"|(?:^|[_.-])(?:api|access|auth|bearer|refresh|session|security|secret|hub|hf|huggingface|wandb|mlflow|comet|neptune"
    r"|github|gh|gitlab|slack)[_.-]?tokens?$"
    r"|(?:^|[_.-])(?:db|pg|user|http|smtp)[_.-]?pass$|(?:amz|goog)-signature$|(?:^|[_.-])webhook(?:[_.-]?url)?$"
    r"|[a-z0-9][_.-]pwd$|^_auth$|(?:basic|http|proxy|docker)[_.-]auth$|auth[_.-]config$"
)


def is_secret_variable(name: str, value: str) -> bool:
    """Whether the value of an environment variable is to be hidden, by its name."""
    upper = name.upper()
    if not value or (upper.endswith("TOKENS") and _NUMBER.fullmatch(value)):
        return False
    return _ENV_NAME.search(_DAILY.sub("", upper)) is not None


def is_secret_parameter(name: str) -> bool:
    """Whether the value of a parameter or an option is to be hidden, by its name."""
    return _PARAMETER_NAME.search(name.lower()) is not None


def is_secret_in_text(name: str, value: str, is_word: bool) -> bool:
    """Whether to hide the text after a name; ``is_word``: the name may be one of a sentence."""
    if is_word and (name in _WORDS or name.lower() == "token"):
        return False
    return is_secret_variable(name, value) if name.isupper() else is_secret_parameter(name)


Value = TypeVar("Value")

REDACTED = "[redacted]"

_COMMAND_LINE_BYTES = 16 << 10

# A shorter one would also be found in words that have nothing to do with it.
SHORTEST_SECRET = 6
# Shorter ones are found as whole words only, and not at all where they are a mere word or number
# (``memory``).
_LONG_SECRET = 12
# One of several kinds of characters is found anywhere from here on: hardly any word holds it by
# chance.
_MIXED_SECRET = 8
_MERE_WORD = re.compile(r"[^\W\d_]+|[\d.,+-]+")
# Where a word begins; a line's end that is written as \n and a color are no part of it.
_WORD_BEGINS = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=\x1b\[m)|(?<=\x1b\[\dm)|(?<=\x1b\[\d\dm)|(?<=\x1b\[\d;\d\dm))"

# Each begins at a word's edge and is as long as its issuer makes it, so that ordinary words are
# left alone.
_SECRET_TEXT = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{20,}"  # Hugging Face
    r"|sk-(?=[a-z0-9_-]{0,100}[A-Z])(?=[A-Za-z_-]{0,100}[0-9])[A-Za-z0-9_-]{20,}"  # OpenAI, Anthropic and their like
    r"|[rs]k_(?:live|test)_[A-Za-z0-9]{16,}"  # Stripe
    r"|wandb_v[0-9]+_[A-Za-z0-9_]{20,}"  # Weights & Biases; its older keys are 40 hexadecimal digits, as commits are
    r"|nvapi-[A-Za-z0-9_-]{20,}|gsk_[A-Za-z0-9]{20,}|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{40,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
    r"|glpat-[A-Za-z0-9_-]{20,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}"  # AWS access key id
    r"|AIza[0-9A-Za-z_-]{30,}"  # Google
    r"|xox[abeprs]-[0-9A-Za-z-]{10,}"  # Slack
    r"|eyJ[A-Za-z0-9_-]{8,1024}+\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]*"  # a JSON web token
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)"
    r")",
    re.DOTALL,
)

# scheme://user:password@host; a quote is a password's only within a word
_URL_PASSWORD = re.compile(r"(?P<before>://[^/\s:@'\"]*+:)(?:[^/\s'\"]|(?<=\w)'(?=\w))+(?=@)")
# The signature of an address is as good as a password.
_SIGNATURE = re.compile(r"(?P<before>[?&](?:sig|signature)=)[^\s&\"'<>]+", re.IGNORECASE)
# curl -u user:password; two numbers are ids
_CURL_USER = re.compile(
    r"(?P<before>(?<![\w-])(?:-[uU]|--(?:proxy-)?user)[\s\"',=]{0,8}+(?!\d+:\d+\b)[^\s:@\"',/=-][^\s:@\"',/]{0,255}:)"
    r"[^\s\"',]+"
)
_COOKIE = re.compile(r"(?P<before>\bcookie[\"']?\s{0,3}:\s{0,3}[\"']?)(?=[^\s=;\"'\[]{1,256}=)[^\n\"']+", re.IGNORECASE)

# Whoever knows the rest of such an address may write there.
_HOOK = re.compile(r"(?P<before>https://(?:hooks\.slack\.com|discord(?:app)?\.com/api/webhooks)/)[^\s\"'<>)]+")

# "bearer" is no word of training, "basic" and "token" are.
_SCHEME = re.compile(
    r"(?P<before>\bbearer\s+|\bauthorization\W{1,6}(?:basic|token|digest)\s+)(?!\[redacted)[^\s\"',;]+"
    r"|(?P<before_basic>\bbasic\s+)(?=\S*[0-9])[A-Za-z0-9+/=]{12,}",
    re.IGNORECASE,
)

# Quoted, quoted within quotes, cut off, an object, or up to where words end. What is hidden beyond
# it is no loss.
_VALUE = re.compile(
    r"\{\\*[\"'][^\n]{0,4096}\}|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'"
    r"|\\+[\"'][^\"'\\\n]*|[\"'][^\"'\n]*|[^\s\"',;&\\][^\s\"',;&]*"
)
_MARKED = re.compile(r"[\\\"']{0,9}" + re.escape(REDACTED[:-1]))
# name=value, --name=value, name: value, "name": "value", environ["name"] = "value"
_ASSIGNED = re.compile(
    r"(?<![\w.-])-{0,2}(?P<name>[A-Za-z_][\w.-]{2,79}+)(?P<between>(?:\\*[\"'])?\]?\s{0,3}+[=:]\s{0,3}+)"
)
# --name value; what looks like an option is a value where it has none itself
_OPTION = re.compile(
    r"(?<![\w-])(?P<name>--?[A-Za-z][\w.-]{1,79}+)(?P<between>[\"',]*+\s++)(?=(?!--)|--[^\s=]{1,256}+(?:\s{1,9}+-|\s*+$))"
)


class Redactor:
    """Takes out secrets by name and look, and the ``known`` values that must not appear."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        texts = {each for each in known if REDACTED not in each and _can_be_found(each)}
        # The longest first: one secret may begin with another.
        ordered = sorted(texts, key=lambda each: (-len(each), each))
        self._known = re.compile("|".join(map(_as_pattern, ordered))) if ordered else None
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
        """Plain data under a name."""
        return REDACTED if isinstance(value, str) and value and is_secret_parameter(name) else self.value(value)

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


def _hide(text: str, found: list[str]) -> str:
    """As `redact_text`; ``found`` gets what was hidden, but for what is known by its look. The work
    grows with the text's length only: whoever writes a log must not be able to stop the agent."""

    def cut(match: re.Match[str]) -> str:
        before: str = next(group for group in match.groups() if group is not None)
        hidden = match[0][len(before) :]
        if not hidden.startswith(REDACTED[:-1]):
            found.append(hidden)
        return f"{before}{REDACTED}"

    text = _SECRET_TEXT.sub(REDACTED, text)
    if "://" in text:
        text = _HOOK.sub(rf"\g<before>{REDACTED}", _URL_PASSWORD.sub(cut, text))
    if "=" in text:
        text = _SIGNATURE.sub(cut, text)
    if "curl" in text:
        text = _CURL_USER.sub(cut, text)
    text = _SCHEME.sub(cut, _COOKIE.sub(cut, text))
    return redact_named(text, is_secret_in_text, found)


def redact_named(text: str, is_secret: Callable[[str, str, bool], bool], found: list[str] | None = None) -> str:
    """The text without the values after names in it: ``name=value``, ``"name": "value"``, ``--name
    value``. ``is_secret`` gets the name, the value (first a dash), and whether the name may be a
    mere word (``name: value``). ``found`` gets the values."""
    hidden: list[str] = [] if found is None else found
    if "=" in text or ":" in text:
        text = _without_named(_ASSIGNED, text, is_secret, hidden)
    return _without_named(_OPTION, text, is_secret, hidden) if "-" in text else text


def _without_named(
    head: re.Pattern[str], text: str, is_secret: Callable[[str, str, bool], bool], hidden: list[str]
) -> str:
    """``head`` ends where a value begins. What is no secret's name is passed over alone: behind it
    may be one (``ValueError: password=x``)."""
    pieces, done = [], 0
    for found in head.finditer(text):
        name, is_word = found["name"].lstrip("-"), found["between"].lstrip().startswith(":")
        if found.start() < done or not is_secret(name, "-", is_word) or _MARKED.match(text, found.end()):
            continue
        value = _VALUE.match(text, found.end())
        bare = "" if value is None else value[0].strip("\\\"'")
        if value is None or not bare or not is_secret(name, bare, is_word):
            continue
        opening = value[0][: len(value[0]) - len(value[0].lstrip("\\\"'"))]
        closing = opening if opening in ("'", '"') and len(value[0]) > 1 and value[0][-1] == opening else ""
        pieces += [text[done : value.start()], opening, REDACTED, closing]
        if head is _ASSIGNED or not bare.startswith("--"):
            hidden.append(bare)
        done = value.end()
    return "".join([*pieces, text[done:]]) if pieces else text


def redact(env: Mapping[str, str]) -> dict[str, str]:
    """An environment as it may be shown: secrets by name vanish whole, those within a value are cut
    out. An empty value stays, for it shows that something is missing."""
    return {
        name: REDACTED if value and is_secret_variable(name, value) else redact_text(value)
        for name, value in env.items()
    }


def redact_params(params: Mapping[str, Value]) -> dict[str, Value]:
    """Parameters as they may be shown. Only text is ever replaced."""
    shown: dict[str, Any] = {
        name: BY_LOOK.named(name, value) if isinstance(value, str) else value for name, value in params.items()
    }
    return shown


def redact_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line as it may be shown: ``--api-key X``, ``api_key=X`` lose their X."""
    return _hide_argv(argv, [])


def _hide_argv(argv: Sequence[str], found: list[str]) -> tuple[str, ...]:
    """As `redact_argv`; ``found`` gets what was hidden but what looks like an option."""
    shown: list[str] = []
    hide_next = False
    is_curl = False
    for at, token in enumerate(argv):
        # What looks like an option may be a value where it has none itself.
        has_none = "=" not in token and (at + 1 == len(argv) or argv[at + 1].startswith("-"))
        if hide_next and (not token.startswith("--") or has_none):
            shown.append(REDACTED if token else token)
            if not token.startswith("--"):
                found.append(token)
            hide_next = False
            continue
        option = f"{argv[at - 1]} " if argv[at - 1] in ("-u", "-U", "--user", "--proxy-user") else ""
        name, equals, value = token.partition("=")
        is_name = not any(map(str.isspace, name))
        is_secret = is_name and (
            is_secret_parameter(name.lstrip("-")) or (name.isupper() and is_secret_variable(name, value or "-"))
        )
        hide_next = is_secret and token.startswith("-") and not equals
        if is_secret and equals and value:
            shown.append(f"{name}={REDACTED}")
            found.append(value)
        elif is_curl and (user := _CURL_USER.fullmatch(before := option + token)) is not None:
            shown.append(f"{user['before'][len(before) - len(token) :]}{REDACTED}")
            found.append(before[user.end("before") :])
        else:
            shown.append(_hide(token, found))
        is_curl = is_curl or token.rpartition("/")[2] == "curl"
    return tuple(shown)


def redact_command_line(raw: bytes) -> str:
    """The words of /proc/PID/cmdline as one line that may be stored and shown."""
    words = raw[:_COMMAND_LINE_BYTES].rstrip(b"\0").decode("utf-8", "replace").split("\0")
    return " ".join(redact_argv(words)).strip()


def secrets_in(env: Mapping[str, str], params: Mapping[str, Any], *argvs: Sequence[str]) -> set[str]:
    """The values in an environment, in parameters and in command lines that must not appear
    anywhere else: secret by their names, or found within a text. What is known by its look needs no
    list."""
    texts = {name: value for name, value in params.items() if isinstance(value, str)}
    found = [value for name, value in env.items() if is_secret_variable(name, value)]
    found += [value for name, value in texts.items() if is_secret_parameter(name)]
    for text in (*env.values(), *texts.values()):
        _hide(text, found)
    for argv in argvs:
        _hide_argv(argv, found)
    # A placeholder or a variable of the shell is no value.
    values = {each for each in found if "{" not in each and not each.startswith("$") and REDACTED not in each}
    return {each for each in values if len(each) >= SHORTEST_SECRET}


def _can_be_found(value: str) -> bool:
    """Whether a known value differs from ordinary words and numbers."""
    if len(value) < SHORTEST_SECRET:
        return False
    return len(value) >= _LONG_SECRET or _MERE_WORD.fullmatch(value) is None


def _as_pattern(value: str) -> str:
    """Where a known value is found: one that may be a part of a word only as a whole word."""
    pattern = re.escape(value)
    if len(value) >= _MIXED_SECRET and _MERE_WORD.fullmatch(value) is None:
        return pattern
    begins = _WORD_BEGINS if value[0].isalnum() else ""
    return f"{begins}{pattern}(?![A-Za-z0-9])" if value[-1].isalnum() else f"{begins}{pattern}"
