"""A profile's ``recovery:`` as a policy, with every mistake named at once."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gputui.recovery.actions import ACTIONS
from gputui.recovery.kinds import KINDS
from gputui.recovery.policies import (
    ENDS_ON,
    POLICIES,
    STOP,
    Backoff,
    Ladder,
    NoticeTarget,
    Policy,
    PolicyAction,
    Rung,
    kinds_with_ladders,
)

_KEYS = ("policy", "max_attempts", "max_without_progress", "backoff", "ladders", "ends_on", "hang_after", "notify")
_BACKOFF = {"base": "base_seconds", "factor": "factor", "max": "max_seconds", "jitter": "jitter"}
MAX_RUNGS = 50
# Of seconds that is eleven days; no action means more of anything.
MOST_NUMBER = 1_000_000


@dataclass(frozen=True, slots=True)
class PolicyProblem:
    """One mistake: the keys that lead to it inside ``recovery:``, and what is wrong in one sentence."""

    key: tuple[str | int, ...]
    text: str

    def __str__(self) -> str:
        path = "recovery"
        for part in self.key:
            path += f"[{part}]" if isinstance(part, int) else f".{part}"
        return f"{path}: {self.text}"


class PolicyError(ValueError):
    """A profile's recovery cannot be understood. ``problems`` holds every mistake."""

    def __init__(self, problems: Iterable[PolicyProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, self.problems)))


def parse_policy(mapping: Mapping[str, Any]) -> Policy:
    """The policy that a mapping describes: ``{"policy": "standard", "max_attempts": 5, "ladders": {…}}``.

    What it leaves out is as in the ready policy that it names, by default ``standard``. Raises PolicyError.
    """
    parser = _Parser()
    policy = parser.policy(mapping)
    if parser.problems:
        raise PolicyError(parser.problems)
    return policy


class _Parser:
    """Collects mistakes and goes on, so that a person sees all of them."""

    def __init__(self) -> None:
        self.problems: list[PolicyProblem] = []

    def wrong(self, key: tuple[str | int, ...], text: str) -> None:
        self.problems.append(PolicyProblem(key, text))

    def policy(self, mapping: Any) -> Policy:
        if not isinstance(mapping, Mapping):
            self.wrong((), f"expected a mapping or the name of a policy, got {mapping!r}")
            return POLICIES["standard"]
        self._unknown_keys(mapping, _KEYS, ())
        base = self._base(mapping.get("policy", "standard"))
        ladders = dict(base.ladders) | self._ladders(mapping.get("ladders"), base)
        return dataclasses.replace(
            base,
            ladders=ladders,
            max_attempts=self._whole(mapping, "max_attempts", base.max_attempts),
            max_without_progress=self._whole(mapping, "max_without_progress", base.max_without_progress),
            backoff=self._backoff(mapping.get("backoff"), base.backoff),
            ends_on=self._ends_on(mapping.get("ends_on"), base),
            hang_after_seconds=self._hang_after(mapping, base),
            notify=self._notify(mapping.get("notify"), base),
        )

    def _ends_on(self, value: Any, base: Policy) -> frozenset[str]:
        if value is None:
            return base.ends_on
        if not isinstance(value, list):
            self.wrong(("ends_on",), f"expected a list such as [hang, nan_loss], got {value!r}")
            return base.ends_on
        if value and not base.enabled:
            self.wrong(("ends_on",), "the policy off ends nothing; choose another policy to build on")
        for place, kind in enumerate(value):
            if kind not in ENDS_ON:
                self.wrong(("ends_on", place), f"{kind!r} cannot be ended on; {_nearest(kind, ENDS_ON)}")
        return frozenset(map(str, value))

    def _hang_after(self, mapping: Mapping[str, Any], base: Policy) -> float:
        value = mapping.get("hang_after", base.hang_after_seconds)
        if not _is_number(value) or not 1 <= value <= 86400:
            self.wrong(("hang_after",), f"expected a number of seconds from 1 to 86400, got {value!r}")
            return base.hang_after_seconds
        return float(value)

    def _base(self, name: Any) -> Policy:
        if name is False:  # how YAML reads a bare "off"
            name = "off"
        if not isinstance(name, str) or name not in POLICIES:
            self.wrong(("policy",), f"unknown policy {name!r}; {_nearest(name, POLICIES)}")
            return POLICIES["standard"]
        return POLICIES[name]

    def _ladders(self, value: Any, base: Policy) -> dict[str, Ladder]:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.wrong(("ladders",), f"expected a mapping from kinds of incident to lists of actions, got {value!r}")
            return {}
        if not base.enabled:
            self.wrong(("ladders",), "the policy off has no ladders; choose another policy to build on")
        found: dict[str, Ladder] = {}
        known = kinds_with_ladders()
        for kind, rungs in value.items():
            key = ("ladders", str(kind))
            if kind in KINDS and KINDS[kind].deterministic:
                self.wrong(key, f"{kind} is never retried, because another attempt would end in the same way")
            elif kind not in known:
                self.wrong(key, f"unknown kind of incident {kind!r}; {_nearest(kind, known)}")
            found[str(kind)] = self._ladder(rungs, key)
        return found

    def _ladder(self, value: Any, key: tuple[str | int, ...]) -> Ladder:
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list) or len(value) > MAX_RUNGS:
            self.wrong(key, f"expected a list of at most {MAX_RUNGS} actions such as [restart, stop], got {value!r}")
            return (STOP,)
        rungs = [self._rung(entry, (*key, place)) for place, entry in enumerate(value)]
        for place, rung in enumerate(rungs):
            stops = any(action.name == "stop" for action in rung)
            if stops and len(rung) > 1:
                self.wrong((*key, place), "stop stands alone")
            elif stops and place < len(rungs) - 1:
                self.wrong((*key, place), "nothing can follow stop")
        return (*(rung for rung in rungs if rung and rung != STOP), STOP)

    def _rung(self, value: Any, key: tuple[str | int, ...]) -> Rung:
        if isinstance(value, str):
            return self._action(value, None, key)
        if isinstance(value, Mapping):
            return tuple(action for name, number in value.items() for action in self._action(name, number, key))
        if isinstance(value, list) and value:
            return tuple(action for place, entry in enumerate(value) for action in self._rung(entry, (*key, place)))
        self.wrong(key, f"expected an action such as restart or {{rollback: 2}}, got {value!r}")
        return ()

    def _action(self, name: Any, number: Any, key: tuple[str | int, ...]) -> Rung:
        kind = ACTIONS.get(name) if isinstance(name, str) else None
        if kind is None:
            self.wrong(key, f"unknown action {name!r}; {_nearest(name, ACTIONS)}")
            return ()
        if number is None:
            return (PolicyAction(kind.name, kind.default),)
        if kind.argument is None:
            self.wrong(key, f"{name} takes no number, got {number!r}")
            return ()
        is_within = _is_number(number) and kind.least <= number <= MOST_NUMBER
        if not is_within or (kind.whole and not float(number).is_integer()):
            what = "a whole number" if kind.whole else "a number"
            span = f"from {kind.least:g} to {MOST_NUMBER}"
            self.wrong(key, f"{name} takes {what} ({kind.argument}) {span}, got {number!r}")
            return ()
        return (PolicyAction(kind.name, float(number)),)

    def _backoff(self, value: Any, base: Backoff) -> Backoff:
        if value is None:
            return base
        if not isinstance(value, Mapping):
            self.wrong(("backoff",), f"expected a mapping with {', '.join(_BACKOFF)}, got {value!r}")
            return base
        self._unknown_keys(value, _BACKOFF, ("backoff",))
        changes: dict[str, float] = {}
        for key, name in _BACKOFF.items():
            if key not in value:
                continue
            number = value[key]
            least, most = {"factor": (1.0, 100.0), "jitter": (0.0, 1.0)}.get(key, (0.0, 86400.0))
            if not _is_number(number) or not least <= number <= most:
                self.wrong(("backoff", key), f"expected a number from {least:g} to {most:g}, got {number!r}")
            else:
                changes[name] = float(number)
        return dataclasses.replace(base, **changes)

    def _notify(self, value: Any, base: Policy) -> NoticeTarget | None:
        key = ("notify",)
        if value is None:
            return base.notify
        if not isinstance(value, Mapping) or not value:
            self.wrong(key, f"expected a mapping with command or webhook, got {value!r}")
            return None
        self._unknown_keys(value, ("command", "webhook"), key)
        command, webhook = value.get("command", []), value.get("webhook")
        if not isinstance(command, list) or not all(isinstance(word, str) and "\0" not in word for word in command):
            self.wrong((*key, "command"), f"expected a list of words such as [notify-send, gputui], got {command!r}")
            command = []
        is_url = isinstance(webhook, str) and re.fullmatch(r"https?://[^\s/]\S*", webhook)
        if webhook is not None and not is_url:
            # What stands there may be half a secret.
            self.wrong((*key, "webhook"), "expected an address that begins with http:// or https://")
        return NoticeTarget(tuple(command), webhook if is_url else None)

    def _whole(self, mapping: Mapping[str, Any], key: str, default: int) -> int:
        value = mapping.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10_000:
            self.wrong((key,), f"expected a whole number from 1 to 10000, got {value!r}")
            return default
        return value

    def _unknown_keys(self, mapping: Mapping[str, Any], known: Iterable[str], key: tuple[str | int, ...]) -> None:
        for name in mapping:
            if name not in known:
                self.wrong((*key, str(name)), f"unknown key {name!r}; {_nearest(name, known)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _nearest(name: Any, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
