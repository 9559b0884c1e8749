"""Rows of a run's history, and lines of its metrics that are not in a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gputui.recovery.run_history import RunHistory
from gputui.store.attempts import Attempt
from gputui.store.checkpoints import CheckpointRow
from gputui.store.metrics.step_lines import FIRST_RANK, LineFilter, StepLine
from gputui.store.run_history import DecisionView, IncidentView, TransitionView
from tests.ledgers import ledger_row


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
        return [
            Source(
                [
                    StepLine(at, step, states_time=True, loss=by_step.get(step), begin=(0, step))
                    for step, at in times.items()
                ]
            )
        ]

    def first(self, attempt: int) -> StepLine | None:
        return self.sources(attempt)[0].first()

    def newest(self, attempt: int, where: LineFilter = FIRST_RANK) -> StepLine | None:
        return self.sources(attempt)[0].newest(where)

    def repeats(self, attempt: int, step: int) -> bool:
        return attempt == self.repeating

    def come_with_checkpoints(self) -> bool:
        return False


FIRST_ATTEMPT = attempt(1, at=0.0, last=39, first_step=1, ended_at=52.0, gpus=("a", "b"))


def second_attempt(**values: Any) -> Attempt:
    fields: dict[str, Any] = {
        "at": 60.0,
        "last": 99,
        "first_step": 31,
        "resumed_from": "/c/step_30.pt",
        "resumed_step": 30,
        "gpus": ("a", "b"),
    }
    return attempt(2, **fields | values)


LAUNCH = move(1.0, origin=None, target="queued")


def history(
    attempts: list[Attempt],
    incidents: Sequence[IncidentView] = (),
    decisions: Sequence[DecisionView] = (),
    transitions: Sequence[TransitionView] = (LAUNCH,),
    checkpoints: Sequence[CheckpointRow] = (),
    lines: Any = None,
) -> RunHistory:
    run: Any = None
    return RunHistory(
        run,
        attempts,
        list(incidents),
        decisions=list(decisions),
        transitions=list(transitions),
        checkpoints=list(checkpoints),
        lines=lines,
    )


def saved(path: str, number: int, **values: Any) -> CheckpointRow:
    return ledger_row(path, attempt=number, **values)
