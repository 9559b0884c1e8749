"""Whether an attempt went on from the checkpoint that it was given."""

from __future__ import annotations

from gputui.recovery.decide import Resumption
from gputui.recovery.history import resumptions
from tests.ledgers import ledger_row
from tests.recovery.test_history import attempt
from tests.tables import table


class Lines:
    """Stored lines with a step every ``gap``, which an attempt wrote again."""

    def __init__(self, gap: int = 1, repeating: int | None = None) -> None:
        self.gap, self.repeating = gap, repeating

    def repeats(self, attempt: int, step: int) -> bool:
        return attempt == self.repeating

    def widest_gap(self, attempt: int) -> int | None:
        return self.gap


@table("first, given, what", [
    (1800, 1800, "resumed"), (1801, 1800, "resumed"), (1790, 1800, "resumed"), (2000, 1800, "resumed"),
    (9, 1800, "beginning"), (0, 1800, "beginning"), (901, 1800, "earlier"), (None, 1800, None), (9, None, None),
])  # fmt: skip
def test_the_first_step_shows_it(first: int | None, given: int | None, what: Resumption | None) -> None:
    attempts = [
        attempt(1, at=0.0, last=1879, first_step=9),
        attempt(2, at=60.0, last=first, first_step=first, resumed_from="/c/x.ckpt", resumed_step=given),
    ]
    assert resumptions(attempts).get(2) == what


def test_steps_that_begin_anew_with_every_epoch_show_nothing() -> None:
    attempts = [
        attempt(1, at=0.0, last=14, first_step=0),
        attempt(2, at=60.0, last=14, first_step=0, resumed_from="/c/x.ckpt", resumed_step=14),
    ]
    assert resumptions(attempts) == {2: "beginning"}
    assert resumptions(attempts, Lines(repeating=1)) == {}


@table(("first", "gap", "steps", "what"), [
    (71, 1, (60, 70), "later"), (61, 1, (60, 70), "resumed"), (71, 1, (60,), "resumed"),
    # The first line after step 60 and the first after step 70 may be the same one.
    (80, 10, (60, 70), "later"), (70, 10, (60, 70), "resumed"),
])  # fmt: skip
def test_a_script_that_loads_a_later_checkpoint_by_itself(
    first: int, gap: int, steps: tuple[int, ...], what: Resumption
) -> None:
    attempts = [
        attempt(1, at=0.0, last=75, first_step=1),
        attempt(2, at=60.0, last=first + 9, first_step=first, resumed_from="/c/step_60.pt", resumed_step=60),
    ]
    ledger = [ledger_row(f"step_{step}.pt", step, step=step) for step in steps]
    assert resumptions(attempts, Lines(gap), ledger) == {2: what}
