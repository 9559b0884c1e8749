"""The sampler's promises, and the two data sets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from tests.trainer.running import settings
from trainer.data import Sampler, Windows, load_data, rank_positions

sizes = st.one_of(st.integers(1, 300), st.sampled_from([1437, 8192, 8193, 20_000]))


@limits(deadline=None)
@given(size=sizes, seed=st.integers(0, 2**40), epoch=st.integers(0, 1000))
def test_every_epoch_holds_every_sample_once(size: int, seed: int, epoch: int) -> None:
    assert sorted(Sampler(size, seed).indices(epoch * size, size)) == list(range(size))


@limits(deadline=None)
@given(
    size=sizes, seed=st.integers(0, 99), start=st.integers(0, 50_000), cuts=st.lists(st.integers(1, 200), max_size=5)
)
def test_samples_depend_on_their_position_alone(size: int, seed: int, start: int, cuts: list[int]) -> None:
    whole = Sampler(size, seed).indices(start, sum(cuts) + 1)
    pieces = []
    for count in [*cuts, 1]:
        pieces.append(Sampler(size, seed).indices(start, count))
        start += count
    assert np.concatenate(pieces).tolist() == whole.tolist()


def test_epochs_and_seeds_differ_and_look_shuffled() -> None:
    first = Sampler(1437, 0).indices(0, 1437)
    for other in (Sampler(1437, 0).indices(1437, 1437), Sampler(1437, 1).indices(0, 1437)):
        assert (first == other).mean() < 0.01
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.1
    assert abs(np.corrcoef(first, np.arange(1437))[0, 1]) < 0.1


@limits(deadline=None)
@given(
    ranks=st.integers(1, 5),
    batch=st.integers(1, 9),
    accum=st.integers(1, 4),
    steps=st.integers(1, 6),
    seed=st.integers(0, 9),
)
def test_no_sample_is_seen_by_two_ranks(ranks: int, batch: int, accum: int, steps: int, seed: int) -> None:
    total = ranks * batch * accum * steps
    sampler = Sampler(total, seed)  # exactly one epoch
    seen: list[int] = []
    consumed = 0
    for _ in range(steps):
        for micro in range(accum):
            for rank in range(ranks):
                seen += sampler.indices(rank_positions(consumed, micro, rank, ranks, batch), batch).tolist()
        consumed += ranks * batch * accum
    assert sorted(seen) == list(range(total))


def test_two_ranks_take_what_one_would_take_with_twice_the_batch() -> None:
    sampler = Sampler(500, 1)
    joined = [sampler.indices(rank_positions(64, micro, 0, 1, 16), 16).tolist() for micro in range(2)]
    split = [[sampler.indices(rank_positions(64, m, r, 2, 8), 8).tolist() for r in range(2)] for m in range(2)]
    assert [first + second for first, second in split] == joined


def test_digits_are_the_real_ones_and_the_held_out_ones_stay_out() -> None:
    from sklearn.datasets import load_digits

    data, known = load_data(settings()), load_digits()
    assert (len(data.train), len(data.held_out)) == (1437, 360)
    images, labels = data.held_out.batch(np.arange(360))
    assert torch.equal(images[:, 0] * 16, torch.from_numpy(known.images[::5]).float())
    assert labels.tolist() == known.target[::5].tolist()
    kept = np.delete(known.target, np.s_[::5])
    assert data.train.batch(np.arange(1437))[1].tolist() == kept.tolist()


def test_windows_predict_the_next_byte() -> None:
    windows = Windows(b"abcdefghij", 4)
    assert len(windows) == 2
    inputs, targets = windows.batch(np.array([1, 0]))
    assert [bytes(row) for row in inputs.tolist()] == [b"efgh", b"abcd"]
    assert [bytes(row) for row in targets.tolist()] == [b"fghi", b"bcde"]


def test_the_language_model_reads_python_source_and_holds_files_out() -> None:
    data = load_data(settings("--task", "lm", "--width", "32"))
    assert len(data.train) > 10 * len(data.held_out) > 1000
    text = bytes(data.train.batch(np.arange(len(data.train)))[0].flatten().tolist())
    assert b"import " in text and b"def " in text
    held = bytes(data.held_out.batch(np.arange(20))[0].flatten().tolist())
    assert held not in text


@pytest.mark.parametrize(("task", "installed"), [("digits", "scikit-learn"), ("lm", "too little Python source")])
def test_missing_data_is_named(task: str, installed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    from trainer.errors import TrainerError

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(TrainerError, match=installed):
        load_data(settings("--task", task, "--width", "32"))
