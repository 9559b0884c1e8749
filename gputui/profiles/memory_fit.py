"""Predict from earlier runs of a profile whether a run fits into its GPUs' memory. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gputui.core.units import bytes_text
from gputui.runs.checks import CheckResult
from gputui.runs.spec import RunSpec
from gputui.store.gpu_use import PastPeak

MARGIN = 0.95
"""The usable share of a GPU's memory; the CUDA context and fragmentation take the rest."""

_LENGTH_WORDS = {"step", "steps", "epoch", "epochs", "seed", "every", "interval", "warmup", "log"}


class Expectation(Struct, frozen=True):
    """The expected peak per GPU in bytes, the number of runs behind it, and whether it was extrapolated from other
    batch sizes."""

    peak_bytes: int
    run_count: int
    is_scaled: bool


def expect(past: Sequence[PastPeak], spec: RunSpec) -> Expectation | None:
    """Predict this run's peak from attempts that differ at most in the batch size and in parameters that do not matter.

    With the same batch size it is the largest peak. Otherwise memory is assumed to be linear in the batch size: through
    the two nearest sizes, or proportional to the only one, which overestimates a larger batch. None without such
    attempts.
    """
    batch_name = spec.role("batch_size", spec.params)
    batch = _batch(spec.params.get(batch_name)) if batch_name is not None else None
    alike = [
        each for each in past if each.peak_bytes is not None and not each.ran_out and _is_like(each, spec, batch_name)
    ]
    if not alike:
        return None
    runs = len({each.run_id for each in alike})
    if batch is None or batch_name is None:
        return Expectation(max(each.peak_bytes or 0 for each in alike), runs, is_scaled=False)
    peaks: dict[int, int] = {}
    for each in alike:
        size = _batch(each.params.get(batch_name))
        if size is not None:
            peaks[size] = max(peaks.get(size, 0), each.peak_bytes or 0)
    if batch in peaks:
        return Expectation(peaks[batch], runs, is_scaled=False)
    if not peaks:
        return None
    near = sorted(peaks, key=lambda size: abs(size - batch))[:2]
    if len(near) == 1:
        expected = peaks[near[0]] * batch / near[0] if batch > near[0] else peaks[near[0]]
    else:
        low, high = sorted(near)
        slope = max(0.0, (peaks[high] - peaks[low]) / (high - low))
        expected = peaks[low] + slope * (batch - low)
    return Expectation(max(0, round(expected)), runs, is_scaled=True)


def check_memory(past: Sequence[PastPeak], spec: RunSpec, memory_total_bytes: int | None) -> CheckResult:
    """Compare the prediction with ``memory_total_bytes``, the memory of the smallest GPU that the run would get."""
    batch_name = spec.role("batch_size", spec.params)
    batch = _batch(spec.params.get(batch_name)) if batch_name is not None else None
    if not spec.gpus.count:
        return CheckResult("memory", "skip", "a CPU run takes no GPU memory")
    ran_out = next(
        (
            each
            for each in past
            if each.ran_out and batch_name is not None and batch is not None and _is_like(each, spec, batch_name)
            and (size := _batch(each.params.get(batch_name))) is not None and size <= batch
        ),
        None,
    )  # fmt: skip
    if ran_out is not None and batch_name is not None:
        message = f"{ran_out.run_id} ran out of GPU memory with {batch_name} {ran_out.params[batch_name]}"
        return CheckResult("memory", "warn", message, f"lower {batch_name}, or leave it to recovery")
    expected = expect(past, spec)
    if expected is None:
        return CheckResult("memory", "skip", "unknown: no earlier run of this profile measured its GPU memory")
    runs = "1 earlier run" if expected.run_count == 1 else f"{expected.run_count} earlier runs"
    how = f"expected from {runs}" + (" with another batch size" if expected.is_scaled else "")
    if memory_total_bytes is None:
        return CheckResult("memory", "skip", f"{bytes_text(expected.peak_bytes)} per GPU {how}")
    message = f"{bytes_text(expected.peak_bytes)} of {bytes_text(memory_total_bytes)} per GPU {how}"
    if expected.peak_bytes > memory_total_bytes * MARGIN:
        remedy = f"lower {batch_name}" if batch_name is not None else "choose GPUs with more memory"
        return CheckResult("memory", "warn", message, remedy)
    return CheckResult("memory", "pass", message)


def _is_like(past: PastPeak, spec: RunSpec, batch_name: str | None) -> bool:
    """Whether an earlier attempt is comparable: its integers and texts are the same. Fractions such as rates, and
    lengths such as numbers of steps, do not change the memory."""
    changed_by_recovery = {batch_name, spec.role("grad_accum", spec.params), spec.role("num_workers", spec.params)}
    for name, value in spec.params.items():
        if name in changed_by_recovery or isinstance(value, float) or name not in past.params:
            continue
        words = set(name.lower().replace("-", "_").split("_"))
        if isinstance(value, int) and not isinstance(value, bool) and words & _LENGTH_WORDS:
            continue
        if past.params[name] != value:
            return False
    return True


def _batch(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
