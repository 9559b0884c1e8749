"""Changes of parameters by recovery."""

from __future__ import annotations

from typing import Any

from gputui.recovery.actions import ACTIONS
from gputui.recovery.batches import Grain, Pair, shrink
from gputui.recovery.classify import Incident
from gputui.recovery.effects import ActionContext, AppliedAction, SkippedAction, apply_changes
from gputui.recovery.kinds import KINDS
from gputui.runs.spec import RunSpec, Scalar
from tests.tables import table

OOM = Incident("cuda_oom", 1, 40, summary="", fingerprint="f" * 16, evidence_lines=())

SHRUNK = {
    (16, 3): (12, 4), (64, 1): (32, 2), (32, 4): (21, 6), (8, 2): (4, 4), (2, 1): (1, 2), (7, 1): (1, 7),
    (100, 1): (50, 2), (127, 1): (64, 2), (12, 4): (8, 6), (1, 8): None, (1, 1): None,
}  # fmt: skip


def spec(**values: Any) -> RunSpec:
    values = {"launcher": "torchrun", **values}
    return RunSpec(name="job", program=("train.py",), workdir="/w", python="/p", nproc=2, **values)


def act(
    name: str, params: dict[str, Scalar], argument: float | None = None, **values: Any
) -> AppliedAction | SkippedAction:
    kind = ACTIONS[name]
    assert kind.apply is not None
    number = kind.default if argument is None else argument
    return kind.apply(ActionContext(OOM, spec(**values), params, number))


def test_shrink() -> None:
    shrunk = {pair: shrink(*pair, Grain()) for pair in SHRUNK}
    assert shrunk == {pair: None if smaller is None else Pair(*smaller) for pair, smaller in SHRUNK.items()}


def test_batch_and_accumulation_change_together() -> None:
    result = act("shrink_batch", {"batch_size": 16, "grad_accum": 3, "lr": 0.1})
    assert isinstance(result, AppliedAction)
    changed = apply_changes({"batch_size": 16, "grad_accum": 3, "lr": 0.1}, (result,))
    assert changed == {"batch_size": 12, "grad_accum": 4, "lr": 0.1}
    fields = result.to_json()
    assert fields["changes"] == [
        {"parameter": "batch_size", "from": 16, "to": 12},
        {"parameter": "grad_accum", "from": 3, "to": 4},
    ]


@table("params", [{"batch_size": 10}, {"batch_size": 10, "grad_accum": None}])
def test_without_accumulation_the_effective_batch_changes_and_that_is_said(params: dict[str, Scalar]) -> None:
    result = act("shrink_batch", params)
    assert isinstance(result, AppliedAction)
    assert [change.after for change in result.changes] == [7]
    assert "the effective batch changes" in result.note


def test_a_port_is_only_claimed_where_the_launcher_takes_one() -> None:
    assert isinstance(act("new_port", {}), AppliedAction)
    assert isinstance(act("new_port", {}, launcher="python"), SkippedAction)


def test_roles_name_other_parameters() -> None:
    result = act(
        "shrink_batch", {"micro": 8, "gradient_accumulation_steps": 2, "batch_size": 99}, roles={"batch_size": "micro"}
    )
    assert isinstance(result, AppliedAction)
    assert [(change.parameter, change.after) for change in result.changes] == [
        ("micro", 4),
        ("gradient_accumulation_steps", 4),
    ]


@table(("before", "after"), [(16, 12), ("16", "12"), (16.0, 12.0)])
def test_values_keep_their_type(before: Scalar, after: Scalar) -> None:
    result = act("shrink_batch", {"batch_size": before, "grad_accum": 3})
    assert isinstance(result, AppliedAction)
    assert result.changes[0].after == after
    assert type(result.changes[0].after) is type(after)


@table(
    ("name", "params", "why"),
    [
        ("shrink_batch", {"lr": 0.1}, "no parameter is known for batch_size"),
        ("shrink_batch", {"batch_size": 1}, "batch_size is 1 already"),
        ("shrink_batch", {"batch_size": "auto"}, "batch_size is 'auto', not a whole number of at least 1"),
        ("shrink_batch", {"batch_size": None}, "batch_size is not set, not a whole number of at least 1"),
        ("shrink_batch", {"batch_size": 0}, "batch_size is 0, not a whole number of at least 1"),
        ("gradient_checkpointing", {}, "no parameter is known for gradient_checkpointing"),
        ("gradient_checkpointing", {"gradient_checkpointing": True}, "gradient_checkpointing is on already"),
        ("lower_lr", {}, "no parameter is known for lr"),
        ("lower_lr", {"lr": 0}, "lr is 0, not a number above 0"),
        ("lower_lr", {"lr": "cosine"}, "lr is 'cosine', not a number above 0"),
        ("tighter_clip", {}, "no parameter is known for grad_clip"),
        ("fewer_workers", {}, "no parameter is known for num_workers"),
        ("fewer_workers", {"num_workers": 0}, "num_workers is 0 already"),
    ],
)
def test_what_cannot_be_done_is_skipped_with_the_reason(name: str, params: dict[str, Scalar], why: str) -> None:
    result = act(name, params)
    assert result == SkippedAction(name, why)
    assert result.to_json() == {"action": name, "applied": False, "changes": [], "note": why}


@table("name, params, argument, after", [
    ("gradient_checkpointing", {"gradient_checkpointing": False}, None, {"gradient_checkpointing": True}),
    ("gradient_checkpointing", {"gradient_checkpointing": "false"}, None, {"gradient_checkpointing": "true"}),
    ("gradient_checkpointing", {"gradient_checkpointing": 0}, None, {"gradient_checkpointing": 1}),
    ("gradient_checkpointing", {"gradient_checkpointing": None}, None, {"gradient_checkpointing": True}),
    ("lower_lr", {"lr": 0.1}, None, {"lr": 0.01}),
    ("lower_lr", {"learning_rate": 3e-4}, 2.0, {"learning_rate": 1.5e-4}),
    ("lower_lr", {"lr": 0.3}, None, {"lr": 0.03}), ("tighter_clip", {"grad_clip": 1.0}, None, {"grad_clip": 0.5}),
    ("tighter_clip", {"max_grad_norm": 0}, None, {"max_grad_norm": 1.0}),
    ("tighter_clip", {"grad_clip": None}, None, {"grad_clip": 1.0}),
    ("fewer_workers", {"num_workers": 8}, None, {"num_workers": 4}),
    ("fewer_workers", {"num_workers": 1}, None, {"num_workers": 0}), ("restart", {"lr": 0.1}, None, {"lr": 0.1}),
    ("wait", {"lr": 0.1}, 5.0, {"lr": 0.1}),
])  # fmt: skip
def test_what_is_done(name: str, params: dict[str, Scalar], argument: float | None, after: dict[str, Scalar]) -> None:
    result = act(name, params, argument)
    assert isinstance(result, AppliedAction)
    assert apply_changes(params, (result,)) == after


def test_every_action_and_kind_has_words_of_its_own() -> None:
    for kinds in (ACTIONS.values(), KINDS.values()):
        titles = [kind.title for kind in kinds]
        assert len(set(titles)) == len(titles)
        assert not any("_" in title for title in titles)
