"""Whether an attempt went on from its checkpoint: by its steps, its losses and the checkpoints that it saved."""

from __future__ import annotations

from gputui.recovery.past_decisions import past_decisions, progress_of
from gputui.recovery.resumptions import Resumption, resumptions
from tests.ledgers import ledger_row
from tests.recovery.histories import Lines, attempt, decision, history, incident, saved
from tests.tables import table

FALLING = [10.0 / step for step in range(1, 31)]
NOISY = [2.0, 2.6, 1.7, 2.4, 1.9] * 6


@table("first, value, what", [
    (1800, 1800, "resumed"), (1801, 1800, "resumed"), (1790, 1800, "resumed"), (2000, 1800, "resumed"),
    (9, 1800, "uncertain"), (0, 1800, "uncertain"), (901, 1800, "earlier"), (None, 1800, None), (9, None, None),
])  # fmt: skip
def test_the_first_step_shows_it(first: int | None, value: int | None, what: Resumption | None) -> None:
    attempts = [
        attempt(1, at=0.0, last=1879, first_step=9),
        attempt(2, at=60.0, last=first, first_step=first, resumed_from="/c/x.ckpt", resumed_step=value),
    ]
    assert resumptions(attempts).get(2) == what


def test_steps_that_begin_anew_with_every_epoch_show_nothing() -> None:
    attempts = [
        attempt(1, at=0.0, last=14, first_step=0),
        attempt(2, at=60.0, last=14, first_step=0, resumed_from="/c/x.ckpt", resumed_step=14),
    ]
    assert resumptions(attempts) == {2: "uncertain"}
    assert resumptions(attempts, Lines(repeating=1)) == {}


@table("before, after, what", [
    (FALLING, FALLING, "beginning"), (FALLING, [loss * 1.05 for loss in FALLING], "beginning"),
    (FALLING, FALLING[1:], "uncertain"), (FALLING, [0.33], "recounted"), (FALLING, [0.9, 0.2, 0.4], "recounted"),
    (FALLING, [10.0], "beginning"), (FALLING[:2], [10.0], "beginning"), (FALLING[:2], [4.0], "recounted"),
    (FALLING, [40.0, 50.0, 60.0], "uncertain"), (FALLING, [1.9, 1.8, 2.0], "uncertain"),
    (NOISY, NOISY, "uncertain"), (FALLING, [], "uncertain"), ([], FALLING, "uncertain"),
])  # fmt: skip
def test_losses_show_whether_an_attempt_that_counts_from_the_first_step_loaded_it(
    before: list[float], after: list[float], what: Resumption
) -> None:
    attempts = [
        attempt(1, at=0.0, last=30, first_step=1),
        attempt(2, at=60.0, last=9, first_step=1, resumed_from="/c/x.pt", resumed_step=30),
    ]
    assert resumptions(attempts, Lines(losses={1: before, 2: after})) == {2: what}


@table("after, is_further", [([0.33], True), ([10.0], False), ([1.9, 1.8, 2.0], False)])
def test_an_attempt_that_loaded_its_checkpoint_and_saved_got_further_whatever_it_counts(
    after: list[float], is_further: bool
) -> None:
    attempts = [
        attempt(1, at=2.0, last=30, first_step=1),
        attempt(2, at=100.0, last=9, first_step=1, resumed_from="/c/x.pt", resumed_step=30),
    ]
    rows = [saved("/c/y.pt", 2)]
    lines = Lines(losses={1: FALLING, 2: after})
    past = history(attempts, [incident(1, 2)], [decision(1, 2, at=160.0)], checkpoints=rows, lines=lines)
    decided = past_decisions(past)
    assert decided[0].progressed is is_further
    assert progress_of(past, 2, ended_at=190.0).made is is_further


def test_a_script_that_counts_on_elsewhere_has_begun_again() -> None:
    attempts = [
        attempt(1, at=0.0, last=30, first_step=1),
        attempt(2, at=60.0, last=60, first_step=31, resumed_from="/c/30.pt", resumed_step=30),
        attempt(3, at=90.0, last=9, first_step=1, resumed_from="/c/60.pt", resumed_step=60),
    ]
    assert resumptions(attempts, Lines()) == {2: "resumed", 3: "beginning"}


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


@table(("first", "gap", "what"), [
    (61, 1, {2: "unaided"}), (60, 10, {2: "unaided"}), (1, 1, {}), (10, 10, {}),
    # A smaller batch: the first line comes after more steps than before.
    (40, 40, {}),
])  # fmt: skip
def test_a_script_that_is_given_nothing_goes_on_by_itself(first: int, gap: int, what: dict[int, Resumption]) -> None:
    attempts = [
        attempt(1, at=0.0, last=75, first_step=min(first, 10)),
        attempt(2, at=60.0, last=first + 9, first_step=first),
    ]
    assert resumptions(attempts, Lines(gap)) == what
