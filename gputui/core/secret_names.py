"""Names that secrets go by; pure. ``HF_TOKEN`` and ``--api-key`` are such, ``PAD_TOKEN_ID`` and ``SORT_KEY`` not."""

from __future__ import annotations

import re

# Environment: to hide too much costs nothing but a word in a list. TOKENIZERS_PARALLELISM is not a token.
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

# Parameters and options: pad_token, user_token and sort_key are daily words of training, so a "token" or "key" among
# other words is not enough.
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
