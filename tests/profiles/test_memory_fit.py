"""What is expected of GPU memory, from what earlier attempts took."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from gputui.machine.gpu_model import GpuFacts
from gputui.profiles.gpu_checks import Expectation, GpuSituation, check_memory, expect
from gputui.runs.spec import GpuRequest, RunSpec
from gputui.store.gpu_use import PastPeak
from tests.tables import table
from tests.texts import mentions

GIB = 2**30
OF_80_GIB = GpuSituation([GpuFacts(uuid="GPU-0", index=0, name="H100", memory_total_bytes=80 * GIB)])
SPEC = RunSpec(
    name="gpt", launcher="python", program=("train.py",), workdir="/", python="/python", gpus=GpuRequest(2),
    params={"batch_size": 64, "lr": 0.1, "layers": 12, "steps": 500},
)  # fmt: skip


def past(run: str, batch: int, gib: float | None, *, ran_out: bool = False, **others: Any) -> PastPeak:
    params = {"batch_size": batch, "lr": 0.3, "layers": 12, "steps": 9, **others}
    return PastPeak(run, 1, params, 2, None if gib is None else round(gib * GIB), ran_out)


def test_the_same_batch_size_takes_the_largest_peak_seen() -> None:
    found = expect([past("a", 64, 40), past("b", 64, 42), past("c", 32, 22)], SPEC)
    assert found == Expectation(42 * GIB, 3, is_scaled=False)


def test_between_two_batch_sizes_it_is_on_their_line() -> None:
    assert expect([past("a", 32, 22), past("b", 128, 70)], SPEC) == Expectation(38 * GIB, 2, is_scaled=True)


@table(("batch", "expected"), [(32, 44), (128, 30)])
def test_one_other_batch_size_is_an_upper_bound(batch: int, expected: int) -> None:
    gib = 22 if batch == 32 else 30
    assert expect([past("a", batch, gib)], SPEC) == Expectation(expected * GIB, 1, is_scaled=True)


def test_another_model_tells_nothing_and_another_rate_or_length_does() -> None:
    assert expect([past("a", 64, 40, layers=24)], SPEC) is None
    assert expect([past("a", 64, 40, steps=7, lr=9.0)], SPEC) is not None


def test_the_check_in_words() -> None:
    assert (
        check_memory([past("a", 64, 60)], SPEC, OF_80_GIB).detail
        == "60 GiB of 80 GiB per GPU expected from 1 earlier run"
    )
    tight = check_memory([past("a", 32, 40)], SPEC, OF_80_GIB)
    assert (tight.status, tight.remedy) == ("warn", "lower batch_size") and "with another batch size" in tight.detail
    assert check_memory([], SPEC, OF_80_GIB).status == "skip"
    assert check_memory([past("a", 64, 60)], replace(SPEC, gpus=GpuRequest(0)), None).status == "skip"
    assert check_memory([past("a", 64, 60)], SPEC, None).status == "skip"


def test_a_batch_size_that_ran_out_before_is_told() -> None:
    found = check_memory([past("a", 64, None, ran_out=True), past("b", 32, 20)], SPEC, OF_80_GIB)
    assert found.status == "warn" and mentions(found.detail, "a ", "batch_size 64")
    assert check_memory([past("a", 128, None, ran_out=True), past("b", 64, 20)], SPEC, OF_80_GIB).status == "pass"
    assert check_memory([past("a", 64, 70, ran_out=True, layers=24)], SPEC, OF_80_GIB).status == "skip"
