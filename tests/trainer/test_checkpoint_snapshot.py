"""Taking a state out of live tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from trainer.checkpoints.snapshot import HostBuffers


def live_state() -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
    return {
        "model": model.state_dict(keep_vars=True),
        "optimizer": {
            name: {"step": torch.tensor(3.0), "exp_avg": torch.randn_like(parameter)}
            for name, parameter in model.named_parameters()
        },
        "random": [{"torch": torch.get_rng_state(), "python": (3, (1, 2), None)}],
        "step": 7,
        "nothing": torch.empty(0, 3),
        "scalar": torch.tensor(2.5, dtype=torch.bfloat16),
    }


def test_nothing_changes_in_it_when_training_goes_on() -> None:
    state = live_state()
    expected = flat(state)
    expected = {
        name: value.detach().clone() if isinstance(value, Tensor) else value for name, value in expected.items()
    }
    taken = HostBuffers().take(state, copy=True)
    with torch.no_grad():
        for value in flat(state).values():
            if isinstance(value, Tensor):
                value.zero_()
    state["random"].clear()
    taken.wait()
    assert_same(flat(taken.state), expected)
    assert type(taken.state["model"]) is dict
    assert not any(value.requires_grad for value in flat(taken.state).values() if isinstance(value, Tensor))
    assert taken.state["model"]["0.weight"].stride() == state["model"]["0.weight"].stride()


def test_without_copying_cpu_tensors_are_the_originals() -> None:
    weights = torch.arange(10.0)
    taken = HostBuffers().take({"weights": weights}, copy=False)
    assert taken.state["weights"].data_ptr() == weights.data_ptr()


@pytest.mark.parametrize("copy", [False, True])
def test_tensors_that_share_memory_still_do(copy: bool) -> None:
    weights = torch.arange(12.0).reshape(3, 4)
    state = {"embedding": weights, "head": weights, "row": weights[1], "transposed": [weights.T]}
    taken = HostBuffers().take(state, copy=copy).state
    assert len({value.untyped_storage().data_ptr() for value in flat(taken).values()}) == 1
    assert_same(flat(taken), flat(state))


@pytest.mark.parametrize("copy", [False, True])
def test_of_a_large_memory_only_the_part_that_is_wanted_is_taken(copy: bool) -> None:
    bucket = torch.arange(1000.0)
    state = {"part": bucket[10:20], "again": bucket[10:20], "every_other": torch.arange(100.0)[::2]}
    taken = HostBuffers().take(state, copy=copy).state
    assert_same(flat(taken), flat(state))
    assert taken["part"].untyped_storage().nbytes() == 40
    assert taken["every_other"].untyped_storage().nbytes() == 200


def test_the_memory_is_used_again() -> None:
    buffers = HostBuffers()
    state = {"a": torch.ones(100), "b": torch.ones(50)}
    first = buffers.take(state, copy=True).state["a"].data_ptr()
    state["a"].fill_(2)
    again = buffers.take(state, copy=True).state
    assert again["a"].data_ptr() == first and again["a"].sum() == 200
    other = buffers.take({"a": torch.full((30,), 3.0), "b": torch.ones(50)}, copy=True).state
    assert other["a"].untyped_storage().nbytes() == 120 and other["a"].sum() == 90


@given(
    st.lists(
        st.tuples(
            st.integers(0, 4), st.integers(0, 4), st.integers(1, 3), st.booleans(), st.sampled_from(["f4", "f2", "i8"])
        ),
        max_size=6,
    ),
    st.booleans(),
)
def test_any_views_come_out_as_they_went_in(views: list[tuple[int, int, int, bool, str]], copy: bool) -> None:
    kinds = {"f4": torch.float32, "f2": torch.float16, "i8": torch.int64}
    bases = {name: torch.arange(25).to(dtype).reshape(5, 5) for name, dtype in kinds.items()}
    state = {}
    for number, (row, column, pace, transposed, kind) in enumerate(views):
        view = bases[kind][row:, column::pace]
        state[str(number)] = view.T if transposed else view
    assert_same(flat(HostBuffers().take(state, copy=copy).state), flat(state))


def flat(state: Any, name: str = "") -> dict[str, Any]:
    if isinstance(state, dict):
        return {key: value for part in state for key, value in flat(state[part], f"{name}/{part}").items()}
    if isinstance(state, list | tuple):
        return {
            key: value for number, part in enumerate(state) for key, value in flat(part, f"{name}/{number}").items()
        }
    return {name: state}


def assert_same(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        if isinstance(value, Tensor):
            assert value.dtype == right[name].dtype and torch.equal(value, right[name]), name
        else:
            assert value == right[name], name
