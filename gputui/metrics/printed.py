"""Metrics in the output of a program, found by the patterns of a profile."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gputui.core.text import SEQUENCE
from gputui.core.training_log import MAX_STEP
from gputui.metrics.contract import Parsed, ParsedLine, Rejected, parse_values
from gputui.metrics.epochs import EpochCount
from gputui.metrics.line_format import LineFormat
from gputui.metrics.values import printed_number

if TYPE_CHECKING:
    import regex

STEP_NAMES = ("step", "iter", "iteration")

# Limits for regular expressions from profiles: the agent matches lines in its loop, and a pattern
# with nested repeats may take years for one line.
MATCHED_CHARACTERS = 2000
MATCH_SECONDS = 0.02  # a hundred times what a plain pattern needs
MAX_TIMEOUTS = 3  # at 20 ms each, the agent's loop is not delayed noticeably

CUT_OFF = Rejected("cut off: no newline at its end")


class OutputPatterns(LineFormat):
    """Metrics in the output of a program, found by regular expressions with named groups, of which
    the first that matches a line counts.

    One needs a step: the group ``step`` of the profile, else ``step``, else ``epoch`` and ``iter``
    together (see `EpochCount`), else ``iter`` or ``iteration``. A line without one, such as that of
    a validation, has the step of the line before, or its epoch before any step. Raises ValueError
    for a bad pattern, or if none has a step.
    """

    breaks_at_return = True

    def __init__(
        self,
        patterns: Sequence[str],
        step: str | None = None,
        units: Mapping[str, float] | None = None,
        learned: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        if not patterns:
            raise ValueError("metrics from what is printed need at least one pattern")
        self._patterns = [compile_pattern(number, text) for number, text in enumerate(patterns, 1)]
        names: Sequence[str] = STEP_NAMES
        if step is not None:
            names = (step,)
        if not any(name in pattern.groupindex for pattern in self._patterns for name in names):
            raise ValueError(f"no metrics pattern has a group named {' or '.join(names)}")
        self._step_names = names
        self._newest_step: int | None = None
        self._units = units or {}
        self._epochs = [EpochCount((learned or {}).get(str(number))) for number in range(len(patterns))]
        self._timeouts = 0

    @property
    def learned(self) -> Mapping[str, Sequence[int]] | None:
        by_pattern = {str(number): epochs.learned for number, epochs in enumerate(self._epochs)}
        return {number: learned for number, learned in by_pattern.items() if learned is not None} or None

    @property
    def remark(self) -> str | None:
        return next((count.remark for count in self._epochs if count.remark is not None), None)

    def parse(self, line: bytes) -> Parsed:
        match = self._match(line)
        if match is None or isinstance(match, Rejected):
            return match
        return self._from_match(match)

    def parse_unterminated(self, line: bytes) -> Parsed:
        """A number at the end of the output may lack digits, so one is valid only if text follows."""
        match = self._match(line)
        if match is None or isinstance(match, Rejected):
            return match
        last = max(match.end(name) for name in match.re.groupindex)
        if last < len(match.string.rstrip()):
            return self._from_match(match)
        return CUT_OFF

    def _match(self, line: bytes) -> regex.Match[str] | Rejected | None:
        """The first match. After several timeouts no line is searched any more."""
        if self._timeouts >= MAX_TIMEOUTS:
            return None
        text = printed_text(line)
        for number, pattern in enumerate(self._patterns, 1):
            try:
                match = pattern.search(text, timeout=MATCH_SECONDS)
            except TimeoutError:
                self._timeouts += 1
                reason = f"metrics pattern {number} needs more than {MATCH_SECONDS * 1000:.0f} ms for it"
                reason = f"{reason}; write it without repeats inside repeats"
                if self._timeouts == MAX_TIMEOUTS:
                    reason = f"{reason}; no more lines are searched"
                return Rejected(reason)
            if match is not None:
                return match
        return None

    def _from_match(self, match: regex.Match[str]) -> Parsed:
        parsed = self._parse_match(match)
        if isinstance(parsed, ParsedLine):
            self._newest_step = parsed.step
        return parsed

    def _parse_match(self, match: regex.Match[str]) -> Parsed:
        groups = {name: text for name, text in match.groupdict().items() if text is not None}
        values: dict[str, int | float | str] = {}
        for name, text in groups.items():
            number = printed_number(text)
            values[name] = text
            if number is not None:
                values[name] = number * self._units.get(name, 1)
        if self._step_names is STEP_NAMES and "step" not in groups and "epoch" in groups and "iter" in groups:
            return self._epoch_line(values, groups, self._epochs[self._patterns.index(match.re)])
        if not any(name in match.re.groupindex for name in self._step_names):
            step = groups.get("epoch", "")
            if self._newest_step is not None:
                step = str(self._newest_step)
            if step:
                return step_line(values, step)
            return Rejected("no step was printed before it")
        return step_line(values, next((groups[name] for name in self._step_names if name in groups), ""))

    def _epoch_line(self, values: dict[str, Any], groups: Mapping[str, str], count: EpochCount) -> Parsed:
        """The line of a match with an epoch and a place in it, ``iter``, perhaps with its ``total``."""
        epoch = printed_number(groups["epoch"])
        place = printed_number(groups["iter"])
        total = None
        if "total" in groups:
            total = printed_number(groups["total"])
        if not (isinstance(epoch, int) and isinstance(place, int) and isinstance(total, int | None)):
            return Rejected("epoch, iter and total are not whole numbers")
        if not 0 <= epoch <= MAX_STEP:
            return Rejected("epoch is out of range")
        values.pop("total", None)
        return step_line(values, str(count.step(epoch, place, total)))


def compile_pattern(number: int, text: str) -> regex.Pattern[str]:
    """Compile the ``number``-th pattern of a profile. Raises ValueError if it does not compile."""
    # Imported here: it takes 14 ms, and most commands need no pattern.
    import regex

    try:
        # Only the standard syntax is accepted, without the extensions of regex.
        re.compile(text)
        pattern = regex.compile(text)
    except (re.error, regex.error, RecursionError, OverflowError) as error:
        raise ValueError(f"metrics pattern {number} is no regular expression: {error}") from error
    return pattern


def printed_text(line: bytes) -> str:
    """The part of a printed line that patterns see: its beginning, without escape sequences."""
    text = line[: 4 * MATCHED_CHARACTERS].decode("utf-8", "replace")
    if "\x1b" in text:
        text = SEQUENCE.sub("", text)
    return text[:MATCHED_CHARACTERS]


def step_line(values: dict[str, Any], step_text: str) -> ParsedLine | Rejected:
    """The line of some values at a printed step."""
    step = printed_number(step_text)
    if step is None:
        return Rejected("step is not a whole number")
    metrics = {name: value for name, value in values.items() if name.lower() not in STEP_NAMES}
    return parse_values({"step": step, **metrics})
