"""The past for decisions, from rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gputui.recovery.past_decisions import past_decisions, progress_of, without_unsound_steps
from gputui.recovery.plans import PastDecision
from gputui.recovery.resumptions import Resumption, resumptions
from gputui.recovery.run_history import RunHistory, person_started_at
from gputui.store.attempts import Attempt
from gputui.store.checkpoints import CheckpointRow
from gputui.store.metrics.step_lines import FIRST_RANK, LineFilter, StepLine
from gputui.store.run_history import DecisionView, IncidentView, TransitionView
from tests.ledgers import ledger_row
from tests.tables import table

FALLING = [10.0 / step for step in range(1, 31)]
NOISY = [2.0, 2.6, 1.7, 2.4, 1.9] * 6


def attempt(number: int, *, at: float, last: int | None = None, **values: Any) -> Attempt:
    fields: dict[str, Any] = {
        "run_id": "job-1", "number": number, "state": "failed", "params": {}, "gpus": (),
        "launch": {}, "created_at": at, "started_at": at + 1, "ended_at": at + 50, "exit_code": 1,
        "first_step": None if last is None else 1, "last_step": last,
    }  # fmt: skip
    return Attempt(**fields | values)


def incident(number: int, attempt_number: int, kind: str = "killed", **values: Any) -> IncidentView:
    fields: dict[str, Any] = {
        "incident_id": number,
        "run_id": "job-1",
        "attempt": attempt_number,
        "at": 0.0,
        "kind": kind,
        "rank": 1,
        "step": 40,
        "summary": "rank 1 was killed from outside (SIGKILL)",
        "evidence": (),
    }
    return IncidentView(**fields | values)


def decision(number: int, attempt_number: int, *, at: float, **values: Any) -> DecisionView:
    fields: dict[str, Any] = {
        "decision_id": number,
        "incident_id": number,
        "run_id": "job-1",
        "attempt": attempt_number,
        "at": at,
        "rung": 0,
        "verdict": "retry",
        "actions": ({"action": "restart", "applied": True, "changes": [], "note": "changed nothing"},),
        "params": {},
        "resume_from": "/c/step_40.pt",
        "delay_seconds": 2.0,
        "reason": "changed nothing, waiting 2 s before resuming from step_40.pt",
        "outcome": None,
    }
    return DecisionView(**fields | values)


def move(at: float, origin: str | None, target: str, actor: str = "ann", cause: str = "launched") -> TransitionView:
    return TransitionView(
        transition_id=int(at), run_id="job-1", at=at, from_state=origin, to_state=target, cause=cause, actor=actor
    )


LAUNCH = move(1.0, None, "queued")


def history(
    attempts: list[Attempt],
    incidents: Sequence[IncidentView] = (),
    decisions: Sequence[DecisionView] = (),
    transitions: Sequence[TransitionView] = (LAUNCH,),
    checkpoints: Sequence[CheckpointRow] = (),
    lines: Any = None,
) -> RunHistory:
    run: Any = None
    return RunHistory(run, attempts, list(incidents), list(decisions), list(transitions), list(checkpoints), lines)


def saved(path: str, number: int, **values: Any) -> CheckpointRow:
    return ledger_row(path, attempt=number, **values)


class Source:
    """Lines of an attempt, each with a loss, which is no finite number where it is None."""

    def __init__(self, stored: list[StepLine]) -> None:
        self.stored = stored

    def lines(self, where: LineFilter = FIRST_RANK, *, is_newest_first: bool = False) -> Iterator[StepLine]:
        for line in sorted(self.stored, key=lambda line: line.begin, reverse=is_newest_first):
            is_within = where.steps[0] <= line.step <= where.steps[1] and where.times[0] <= line.at <= where.times[1]
            if is_within and (where.loss != "finite" or line.loss is not None):
                yield line

    def first(self, where: LineFilter = FIRST_RANK) -> StepLine | None:
        return next(self.lines(where), None)

    def newest(self, where: LineFilter = FIRST_RANK) -> StepLine | None:
        return next(self.lines(where, is_newest_first=True), None)


class Lines:
    """Stored lines as `StepLines` reads them: those of ``times`` by attempt and step, or of ``losses``, or the one of
    ``unsound``, or two that are ``gap`` steps from each other. One attempt wrote its first step again."""

    def __init__(
        self,
        gap: int = 1,
        repeating: int | None = None,
        unsound: dict[int, int] | None = None,
        losses: dict[int, list[float]] | None = None,
        times: dict[tuple[int, int], float] | None = None,
    ) -> None:
        self.gap = gap
        self.repeating = repeating
        self.unsound = unsound or {}
        self.losses = losses or {}
        self.times = times

    def sources(self, attempt: int) -> list[Source]:
        losses = self.losses.get(attempt, [])
        if self.times is not None:
            times = {step: at for (number, step), at in self.times.items() if number == attempt}
        elif attempt in self.unsound:
            times = {self.unsound[attempt]: 0.0}
        elif losses:
            times = {step: float(step) for step in range(1, len(losses) + 1)}
        else:
            times = {1: 1.0, 1 + self.gap: 2.0}
        by_step = dict(enumerate(losses, 1))
        return [Source([StepLine(at, step, True, by_step.get(step), (0, step)) for step, at in times.items()])]

    def first(self, attempt: int) -> StepLine | None:
        return self.sources(attempt)[0].first()

    def newest(self, attempt: int, where: LineFilter = FIRST_RANK) -> StepLine | None:
        return self.sources(attempt)[0].newest(where)

    def repeats(self, attempt: int, step: int) -> bool:
        return attempt == self.repeating

    def come_with_checkpoints(self) -> bool:
        return False


def test_decisions_become_what_the_policy_needs() -> None:
    attempts = [attempt(1, at=2.0, last=40), attempt(2, at=100.0, last=40), attempt(3, at=200.0, last=55)]
    full = "rank 1 ran out of GPU memory (tried to allocate 2.00 GiB, train.py:18)"
    incidents = [incident(1, 1, "cuda_oom", summary=full), incident(2, 2, "killed", step=None)]
    shrink = {"action": "shrink_batch", "applied": True, "changes": [], "note": ""}
    skipped = {"action": "gradient_checkpointing", "applied": False, "changes": [], "note": ""}
    decisions = [
        decision(1, 1, at=60.0, params={"batch_size": 12}, actions=(shrink, skipped)),
        decision(2, 2, at=160.0, rung=1),
    ]
    assert past_decisions(history(attempts, incidents, decisions)) == [
        PastDecision(
            1, "cuda_oom", 0, "retry", True, True, ("shrink_batch",), {}, 40, "tried to allocate 2.00 GiB, train.py:18"
        ),
        PastDecision(2, "killed", 1, "retry", False, False, ("restart",), detail="SIGKILL"),
    ]


def test_only_what_happened_since_a_person_started_it_counts() -> None:
    attempts = [attempt(1, at=2.0, last=90), attempt(2, at=500.0, last=40)]
    incidents = [incident(1, 1), incident(2, 2)]
    decisions = [decision(1, 1, at=60.0, verdict="stop"), decision(2, 2, at=560.0)]
    moves = [LAUNCH, move(60.0, "recovering", "queued", "agent"), move(400.0, "failed", "queued", cause="resume")]
    assert person_started_at(moves) == 400.0
    past = past_decisions(history(attempts, incidents, decisions, moves))
    # Attempt 2 reached less than attempt 1, but that was before a person took a new start.
    assert [(entry.attempt, entry.progressed) for entry in past] == [(2, True)]
    progress = progress_of(history(attempts, transitions=moves), 2, ended_at=560.0)
    assert progress.best_step_before is None and progress.made


def test_without_steps_a_checkpoint_of_its_own_is_progress() -> None:
    attempts = [attempt(1, at=2.0), attempt(2, at=100.0, resumed_from="/c/step_40.pt", resumed_step=40)]

    def made(*rows: CheckpointRow) -> bool:
        return progress_of(history(attempts, checkpoints=rows), 2, ended_at=190.0).made

    assert made(saved("/c/step_40.pt", 1), saved("/c/step_60.pt", 2))
    assert not made(saved("/c/step_60.pt", 2, verdict="invalid"))
    assert not made(saved("/c/step_60.pt", 2, origin="foreign"))
    assert not made(saved("/c/step_40.pt", 1))


def test_steps_with_a_loss_that_is_not_finite_are_no_progress() -> None:
    attempts = [attempt(1, at=2.0, last=45), attempt(2, at=100.0, last=46), attempt(3, at=200.0, last=47)]
    sound = without_unsound_steps(attempts, Lines(unsound={2: 41, 3: 41}, losses={1: [1.0]}))
    assert [row.last_step for row in sound] == [45, 40, 40]
    past = past_decisions(history(sound, [incident(1, 2, "nan_loss")], [decision(1, 2, at=160.0)]))
    assert not past[0].progressed
    assert not progress_of(history(sound), 3, ended_at=260.0).made


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
