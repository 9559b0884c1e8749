"""What must not be shown or stored: secrets in environments, parameters and command lines.

Pure. A secret is known by the name that it goes by (``HF_TOKEN``, ``--api-key``) or by its own look (``hf_…``,
``AKIA…``). The true values live only in the run's own files, readable by their owner; everything that goes into the
database, a log or a terminal passes through here first. Doing it twice changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gputui.runs.command import Launch
from gputui.runs.spec import RunSpec, Scalar

REDACTED = "[redacted]"

# Environment: to hide too much costs nothing but a word in a list. TOKENIZERS_PARALLELISM is not a token.
_ENV_NAME = re.compile(
    r"SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|APIKEY|AUTHORIZATION|TOKEN(?!I[ZS])|KEYS?(?=[_.-]|$)"
)

# Parameters and options: pad_token and sort_key are daily words of training, so a bare "token" or "key" is not enough.
_PARAMETER_NAME = re.compile(
    r"secret|password|passwd|passphrase|credential|apikey"
    r"|(?:^|[_.-])(?:api|access|private|auth|signing|encryption|account)[_.-]?keys?$"
    r"|(?:^|[_.-])(?:api|access|auth|bearer|refresh|session|hub|hf|huggingface|wandb|github|gitlab|slack)[_.-]?tokens?$"
)

# Each begins at a word's edge and is as long as its issuer makes it, so that ordinary words are left alone.
_SECRET_TEXT = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{20,}"  # Hugging Face
    r"|sk-(?=[a-z0-9_-]*[A-Z])(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{20,}"  # OpenAI, Anthropic and their like
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
_URL_PASSWORD = re.compile(r"(?P<before>[A-Za-z][A-Za-z0-9+.-]*://[^/\s:@]*:)[^/\s@]+(?=@)")


def redact_text(text: str) -> str:
    """The text with everything in it that looks like a secret replaced."""
    return _URL_PASSWORD.sub(rf"\g<before>{REDACTED}", _SECRET_TEXT.sub(REDACTED, text))


def redact(env: Mapping[str, str]) -> dict[str, str]:
    """An environment as it may be shown: secrets by name vanish whole, those within a value are cut out. An empty
    value stays, for it shows that something is missing."""
    return {
        name: REDACTED if value and _is_secret_name(name, value) else redact_text(value) for name, value in env.items()
    }


def redact_params(params: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Parameters as they may be shown. Only text is ever replaced."""
    return {
        name: (REDACTED if value and _PARAMETER_NAME.search(name.lower()) else redact_text(value))
        if isinstance(value, str)
        else value
        for name, value in params.items()
    }


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
        is_secret = _PARAMETER_NAME.search(name.lstrip("-").lower()) is not None and not any(map(str.isspace, name))
        hide_next = is_secret and token.startswith("-") and not equals
        shown.append(f"{name}={REDACTED}" if is_secret and equals and value else redact_text(token))
    return tuple(shown)


def redact_launch(launch: Launch) -> Launch:
    """A launch as it may be stored and shown."""
    return replace(launch, argv=redact_argv(launch.argv), env=redact(launch.env))


def redact_spec(spec: RunSpec) -> RunSpec:
    """A specification as it may be stored and shown."""
    return replace(
        spec,
        program=redact_argv(spec.program),
        args=None if spec.args is None else redact_argv(spec.args),
        params=redact_params(spec.params),
        env=redact(spec.env),
        recovery=_redact_recovery(spec.recovery),
        checkpoints=None
        if spec.checkpoints is None
        else replace(spec.checkpoints, resume=redact_argv(spec.checkpoints.resume)),
    )


def _redact_recovery(recovery: Mapping[str, Any]) -> Mapping[str, Any]:
    """Whoever knows the address of a webhook may write to it, and commands may hold a password."""
    notify = recovery.get("notify")
    if not isinstance(notify, Mapping):
        return recovery
    shown = dict(notify)
    if isinstance(shown.get("webhook"), str):
        shown["webhook"] = f"https://{REDACTED}"
    if isinstance(shown.get("command"), list | tuple):
        shown["command"] = list(redact_argv([str(word) for word in shown["command"]]))
    return {**recovery, "notify": shown}


def restore(params: Mapping[str, Scalar], original: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Parameters for a command from those stored: a value that was redacted is taken from ``original``, the
    parameters of the private specification.

    Raises ValueError for one that ``original`` does not explain: a command line with the mark in it would be wrong.
    """
    restored: dict[str, Scalar] = {}
    hidden = redact_params(original)
    for name, value in params.items():
        if isinstance(value, str) and REDACTED in value and value != original.get(name):
            if hidden.get(name) != value:
                raise ValueError(f"the secret value of {name} is not stored; launch the run again")
            restored[name] = original[name]
        else:
            restored[name] = value
    return restored


def _is_secret_name(name: str, value: str) -> bool:
    upper = name.upper()
    if upper.endswith("TOKENS") and value.isdigit():
        return False
    return _ENV_NAME.search(upper) is not None
