"""Redaction of launches and specifications; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.redaction import BY_LOOK, Redactor, redact_params, secrets_in
from gputui.core.secret_patterns import REDACTED
from gputui.runs.code_version import without_diff
from gputui.runs.command import PIECE_START, PLACEHOLDER, Launch
from gputui.runs.spec import RunSpec, Scalar

_ONLY_PLACEHOLDER = re.compile(rf"(?:^|(?<==)){PLACEHOLDER.pattern}$")
"""The placeholder that is a whole word, or all that stands behind its first ``=``."""


class _TemplateWord(Struct, frozen=True):
    """A word of a command line with placeholders, without the brackets of an optional piece."""

    text: str
    opening: str = ""
    closing: str = ""

    @property
    def without_placeholder(self) -> str:
        """The word for a search for secrets: a value that is only a placeholder is none."""
        return _ONLY_PLACEHOLDER.sub("", self.text)


def _template_words(argv: Sequence[str]) -> list[_TemplateWord]:
    """The words of a command line with placeholders."""
    templates: list[_TemplateWord] = []
    for word in argv:
        opening = closing = ""
        if PIECE_START.match(word):
            opening = "["
        text = word.removeprefix(opening)
        if text.endswith("]") and text.count("]") > text.count("["):
            closing = "]"
        templates.append(_TemplateWord(text.removesuffix(closing), opening, closing))
    return templates


def _redact_template(redactor: Redactor, argv: Sequence[str]) -> tuple[str, ...]:
    """A command line with placeholders as it may be stored and shown."""
    templates = _template_words(argv)
    searched = [template.without_placeholder for template in templates]
    redacted: list[str] = []
    for template, before, after in zip(templates, searched, redactor.argv(searched), strict=True):
        text = after
        if before == after:
            text = template.text
        redacted.append(f"{template.opening}{text}{template.closing}")
    return tuple(redacted)


def secrets_of(spec: RunSpec) -> set[str]:
    """The secrets of a specification, for redaction wherever they appear: a script may print them,
    and placeholders may put them under harmless names."""
    argvs = [tuple(spec.sinks.values()), spec.typed]
    templates = [spec.program, spec.args or ()]
    if spec.checkpoints is not None:
        templates.append(spec.checkpoints.resume)
    argvs += [tuple(word.without_placeholder for word in _template_words(argv)) for argv in templates]
    secrets = secrets_in(spec.env, spec.params, *argvs)
    for phase in spec.phases:
        secrets |= secrets_in({}, phase.params)
    if spec.shell is not None:
        secrets |= secrets_in(spec.shell.environment, {})
    return secrets


def redact_launch(launch: Launch, redactor: Redactor = BY_LOOK) -> Launch:
    """A launch as it may be stored and shown. ``redactor`` knows its specification's secrets."""
    return replace(launch, argv=redactor.argv(launch.argv), env=redactor.env(launch.env))


def redact_spec(spec: RunSpec) -> RunSpec:
    """A specification as it may be stored and shown."""
    redactor = Redactor(secrets_of(spec))
    args = spec.args
    checkpoints = spec.checkpoints
    params = redact_params(spec.params)
    if args is not None:
        args = _redact_template(redactor, args)
    if checkpoints is not None:
        checkpoints = replace(checkpoints, resume=_redact_template(redactor, checkpoints.resume))
    return replace(
        spec,
        program=_redact_template(redactor, spec.program),
        typed=redactor.argv(spec.typed),
        args=args,
        params=params,
        spellings={name: text for name, text in spec.spellings.items() if params.get(name) == spec.params.get(name)},
        phases=tuple(replace(phase, params=redact_params(phase.params)) for phase in spec.phases),
        shell=None,
        code=without_diff(spec.code),
        env=redactor.env(spec.env),
        sinks={name: redactor.text(target) for name, target in spec.sinks.items()},
        checkpoints=checkpoints,
    )


def restore(params: Mapping[str, Scalar], original: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Stored parameters with each redacted value taken from ``original``, the private ones. Raises
    ValueError for one that ``original`` lacks."""
    hidden = [name for name, value in params.items() if isinstance(value, str) and REDACTED in value]
    if missing := [name for name in hidden if name not in original]:
        raise ValueError(f"the secret value of {missing[0]} is not stored; launch the run again")
    return {**params, **{name: original[name] for name in hidden}}
