"""Explain metrics lines that could not be used."""

from __future__ import annotations

from gputui.store.metrics.intake import Intake

EXAMPLE_CHARACTERS = 60


def intake_words(known: Intake) -> str | None:
    """A sentence about lines that could not be used; None if all could, or if nothing was written
    yet."""
    if known.rejected:
        total = known.taken + known.rejected
        if known.taken:
            begin = f"{known.rejected} of {total} metrics lines could not be used"
        elif total == 1:
            begin = "The only metrics line so far could not be used"
        else:
            begin = f"None of the {total} metrics lines so far could be used"
        if known.reason is None or known.example is None:
            return begin
        cut = known.example[: EXAMPLE_CHARACTERS - 1] + "…"
        example = known.example if len(known.example) <= EXAMPLE_CHARACTERS else cut
        return f"{begin} ({known.reason}): {example}"
    if known.no_metrics is not None:
        return f"None yet: {known.no_metrics}; gputui check --log FILE PROFILE tries patterns"
    if known.short_of is not None:
        step, total = known.short_of
        return (
            f"It succeeded at step {step} of {total}: see with gputui check --log FILE PROFILE whether steps are read"
        )
    if known.is_over and known.printed_bytes and not known.taken:
        return "Nothing that it printed matches the metrics patterns of its profile"
    return None
