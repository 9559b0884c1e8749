"""Redaction of launches and specifications; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from gputui.core.redaction import BY_LOOK, Redactor, redact_argv, redact_params, secrets_in
from gputui.core.secret_patterns import REDACTED
from gputui.runs.code_version import without_diff
from gputui.runs.command import Launch
from gputui.runs.spec import RunSpec, Scalar


def secrets_of(spec: RunSpec) -> set[str]:
    """The secrets of a specification, for redaction wherever they appear: a script may print them,
    and placeholders may put them under harmless names."""
    argvs = [
        tuple(spec.sinks.values()),
        spec.typed,
        # The bracket of an optional piece is no part of the option's name.
        tuple(word.removeprefix("[") for word in (*spec.program, *(spec.args or ()))),
        () if spec.checkpoints is None else spec.checkpoints.resume,
    ]
    notify = spec.recovery.get("notify")
    command = notify.get("command") if isinstance(notify, Mapping) else None
    if isinstance(command, list | tuple):
        argvs.append(tuple(str(word) for word in command))
    inherited = {} if spec.shell is None else spec.shell.environment
    return secrets_in(spec.env, spec.params, *argvs) | secrets_in(inherited, {})


def redact_launch(launch: Launch, redactor: Redactor = BY_LOOK) -> Launch:
    """A launch as it may be stored and shown. ``redactor`` knows its specification's secrets."""
    return replace(launch, argv=redactor.argv(launch.argv), env=redactor.env(launch.env))


def redact_spec(spec: RunSpec) -> RunSpec:
    """A specification as it may be stored and shown."""
    own = Redactor(secrets_of(spec))
    return replace(
        spec,
        program=own.argv(spec.program),
        typed=own.argv(spec.typed),
        args=None if spec.args is None else own.argv(spec.args),
        params=redact_params(spec.params),
        shell=None,
        code=without_diff(spec.code),
        env=own.env(spec.env),
        recovery=_redact_recovery(spec.recovery),
        sinks={name: own.text(target) for name, target in spec.sinks.items()},
        checkpoints=None
        if spec.checkpoints is None
        else replace(spec.checkpoints, resume=own.argv(spec.checkpoints.resume)),
    )


def _redact_recovery(recovery: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings without the webhook's address and without secrets of the command."""
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
    """Stored parameters with each redacted value taken from ``original``, the private ones. Raises
    ValueError for one that ``original`` lacks."""
    hidden = [name for name, value in params.items() if isinstance(value, str) and REDACTED in value]
    if missing := [name for name in hidden if name not in original]:
        raise ValueError(f"the secret value of {missing[0]} is not stored; launch the run again")
    return {**params, **{name: original[name] for name in hidden}}
