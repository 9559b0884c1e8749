"""Patterns of secrets: their names, the forms of tokens, and values that follow a name. Pure."""

from __future__ import annotations

import re

REDACTED = "[redacted]"

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
SECRET_TEXT = re.compile(
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
URL_PASSWORD = re.compile(r"(?P<before>://[^/\s:@'\"]*+:)(?:[^/\s'\"]|(?<=\w)'(?=\w))+(?=@)")
# The signature of an address is as good as a password.
SIGNATURE = re.compile(r"(?P<before>[?&](?:sig|signature)=)[^\s&\"'<>]+", re.IGNORECASE)
# curl -u user:password; two numbers are ids
CURL_USER = re.compile(
    r"(?P<before>(?<![\w-])(?:-[uU]|--(?:proxy-)?user)[\s\"',=]{0,8}+(?!\d+:\d+\b)[^\s:@\"',/=-][^\s:@\"',/]{0,255}:)"
    r"[^\s\"',]+"
)
COOKIE = re.compile(r"(?P<before>\bcookie[\"']?\s{0,3}:\s{0,3}[\"']?)(?=[^\s=;\"'\[]{1,256}=)[^\n\"']+", re.IGNORECASE)

# Whoever knows the rest of such an address may write there.
HOOK_ADDRESS = re.compile(r"(?P<before>https://(?:hooks\.slack\.com|discord(?:app)?\.com/api/webhooks)/)[^\s\"'<>)]+")

# "bearer" is no word of training, "basic" and "token" are.
AUTHORIZATION = re.compile(
    r"(?P<before>\bbearer\s+|\bauthorization\W{1,6}(?:basic|token|digest)\s+)(?!\[redacted)[^\s\"',;]+"
    r"|(?P<before_basic>\bbasic\s+)(?=\S*[0-9])[A-Za-z0-9+/=]{12,}",
    re.IGNORECASE,
)

# Quoted, quoted within quotes, cut off, an object, or up to where words end. What is hidden beyond
# it is no loss.
VALUE = re.compile(
    r"\{\\*[\"'][^\n]{0,4096}\}|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'"
    r"|\\+[\"'][^\"'\\\n]*|[\"'][^\"'\n]*|[^\s\"',;&\\][^\s\"',;&]*"
)
MARKED = re.compile(r"[\\\"']{0,9}" + re.escape(REDACTED[:-1]))
# name=value, --name=value, name: value, "name": "value", environ["name"] = "value"
ASSIGNED = re.compile(
    r"(?<![\w.-])-{0,2}(?P<name>[A-Za-z_][\w.-]{2,79}+)(?P<between>(?:\\*[\"'])?\]?\s{0,3}+[=:]\s{0,3}+)"
)
# --name value; what looks like an option is a value where it has none itself
OPTION = re.compile(
    r"(?<![\w-])(?P<name>--?[A-Za-z][\w.-]{1,79}+)(?P<between>[\"',]*+\s++)(?=(?!--)|--[^\s=]{1,256}+(?:\s{1,9}+-|\s*+$))"
)


def is_secret_variable(name: str, value: str) -> bool:
    """Return whether the value of an environment variable is to be hidden, by its name."""
    upper = name.upper()
    if not value or (upper.endswith("TOKENS") and _NUMBER.fullmatch(value)):
        return False
    return _ENV_NAME.search(_DAILY.sub("", upper)) is not None


def is_secret_parameter(name: str) -> bool:
    """Return whether the value of a parameter or an option is to be hidden, by its name."""
    return _PARAMETER_NAME.search(name.lower()) is not None


def is_secret_in_text(name: str, value: str, is_word: bool) -> bool:
    """Return whether to hide the text after a name, which may be a word of a sentence."""
    if is_word and (name in _WORDS or name.lower() == "token"):
        return False
    if name.isupper():
        return is_secret_variable(name, value)
    return is_secret_parameter(name)


def can_be_found(value: str) -> bool:
    """Return whether a known value differs from ordinary words and numbers."""
    if len(value) < SHORTEST_SECRET:
        return False
    return len(value) >= _LONG_SECRET or _MERE_WORD.fullmatch(value) is None


def known_pattern(value: str) -> str:
    """A pattern for a known value; one that may be a part of a word matches whole words only."""
    pattern = re.escape(value)
    if len(value) >= _MIXED_SECRET and _MERE_WORD.fullmatch(value) is None:
        return pattern
    begins = _WORD_BEGINS if value[0].isalnum() else ""
    if value[-1].isalnum():
        return f"{begins}{pattern}(?![A-Za-z0-9])"
    return f"{begins}{pattern}"
