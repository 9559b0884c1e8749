"""A profile's ``recovery:`` as pydantic models.

    max_attempts: 5
    ladders:
      nan_loss: [{rollback: 2}, [lower_lr, tighter_clip], stop]

A ladder is a list of rungs, a rung one action or several, an action its name or ``{name: number}``.
`gputui.recovery.policies.policy_from` makes a policy of a valid one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, create_model, model_validator

from gputui.core.yaml_forms.forms import Model, expected, problem, within
from gputui.recovery.actions import ACTIONS, ActionKind
from gputui.recovery.kinds import KINDS
from gputui.recovery.policies import ENDS_ON, POLICIES, kinds_with_ladders

MAX_RUNGS = 50  # no failure is tried so often; a longer ladder is a mistake
# The largest argument of any action; in seconds it is eleven days.
MAX_ARGUMENT = 1_000_000
_DAY_SECONDS = 86_400


class _Actions(Model):
    called = "action"


def _number(action: ActionKind) -> Any:
    """The type of the number behind an action's name; without it the default is used."""
    if action.argument is None:
        return None
    noun = "a whole number" if action.whole else "a number"
    what = f"{noun} ({action.argument})"
    return Annotated[float, within(action.least, MAX_ARGUMENT, whole=action.whole, what=what)] | None


def _action(action: object) -> object:
    """Expand ``restart`` to ``{restart: null}``."""
    if not isinstance(action, str | dict):
        raise expected("an action such as restart or {rollback: 2}")
    if isinstance(action, str):
        return {action: None}
    return action


def _stop_alone(rung: list[_Actions]) -> list[_Actions]:
    names = [name for entry in rung for name in entry.model_fields_set]
    if "stop" in names and len(names) > 1:
        raise problem("stop must be the only action of its rung")
    return rung


def _ladder(ladder: object) -> object:
    """Expand one action to a ladder of it."""
    if isinstance(ladder, str):
        return [ladder]
    if not isinstance(ladder, list) or len(ladder) > MAX_RUNGS:
        raise expected(f"a list of at most {MAX_RUNGS} actions such as [restart, stop]")
    return ladder


def _stop_last(ladder: list[list[_Actions]]) -> list[list[_Actions]]:
    for place, rung in enumerate(ladder[:-1]):
        if any("stop" in entry.model_fields_set for entry in rung):
            raise problem("nothing can follow stop", at=(place,))
    return ladder


def _rung(actions: object) -> object:
    """Expand one action to a list of it."""
    if isinstance(actions, list) and actions:
        return actions
    return [actions]


def _policy_name(name: object) -> object:
    """Read the ``off`` of YAML, which is false."""
    if name is False:
        return "off"
    return name


def _retried_kind(kind: object) -> object:
    if isinstance(kind, str) and kind in KINDS and KINDS[kind].retry == "never":
        raise problem(f"{kind} is never retried, because another attempt would fail in the same way")
    return kind


if TYPE_CHECKING:
    PolicyName = str
    EndsOn = str
    KindName = str
    Action = _Actions
else:  # which mypy cannot read: the names that are known at run time
    PolicyName = Annotated[Literal[tuple(POLICIES)], BeforeValidator(_policy_name)]
    EndsOn = Literal[tuple(ENDS_ON)]
    KindName = Literal[tuple(kinds_with_ladders())]
    numbers = {name: (_number(action), None) for name, action in ACTIONS.items()}
    Action = Annotated[create_model("Action", __base__=_Actions, **numbers), BeforeValidator(_action)]

Rung = Annotated[
    list[Action],
    BeforeValidator(_rung),
    AfterValidator(_stop_alone),
]
Ladder = Annotated[list[Rung], BeforeValidator(_ladder), AfterValidator(_stop_last)]
Times = Annotated[int, within(1, 10_000, whole=True)]
Seconds = Annotated[float, within(0, _DAY_SECONDS)]


class BackoffForm(Model):
    """The delay of an unchanged restart in seconds, and how it grows."""

    base: Seconds = 0.0
    factor: Annotated[float, within(1, 100)] = 1.0
    max: Seconds = 0.0
    jitter: Annotated[float, within(0, 1)] = 0.0


class RecoveryForm(Model):
    """A built-in policy with overrides, described for the documentation where they are declared.

    Attributes:
        max_attempts: The default here is never used: where the key is not given, the policy's own counts.
        max_without_progress: The default here is never used, as with ``max_attempts``.
        hang_after: The default here is never used, as with ``max_attempts``.
    """

    policy: PolicyName = Field("standard", description="the policy to start from")
    max_attempts: Times = Field(1, description="attempts since a person started the run")
    max_without_progress: Times = Field(1, description="fruitless unchanged attempts in a row")
    backoff: BackoffForm | None = Field(None, description="`base`, `factor`, `max`, `jitter` of the delay")
    ladders: dict[Annotated[KindName, BeforeValidator(_retried_kind)], Ladder] | None = Field(
        None, description="actions by kind of incident, or `default`"
    )
    ends_on: list[EndsOn] | None = Field(None, description="findings that end a live attempt")
    retry_on_exit: list[Annotated[int, within(1, 255, whole=True, what="an exit code")]] | None = Field(
        None, description="exit codes after which it starts again in any case, within the limits"
    )
    hang_after: Annotated[float, within(1, _DAY_SECONDS, what="a number of seconds")] = Field(
        1.0, description="seconds of the shortest silence that may be a hang (60)"
    )

    @model_validator(mode="after")
    def _builds_on_ladders(self) -> RecoveryForm:
        if self.policy == "off":
            for key in ("ladders", "ends_on", "retry_on_exit"):
                if getattr(self, key):
                    raise problem(f"the policy off has no {key}; choose another policy to build on", at=(key,))
        return self
