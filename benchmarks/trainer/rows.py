"""The trainer's lines in the table of figures. The aims on a GPU are those for one of the H200's class."""

from __future__ import annotations

from typing import Any

from benchmarks.figures import Figure, Unit

NAME = "trainer"
_SMALL = "small transformer, 2 CPU ranks"


def _row(text: str, unit: Unit, *path: str, **more: Any) -> Figure:
    return Figure(NAME, text, unit, path, **more)


def _compared(part: str, what: str) -> list[Figure]:
    return [
        _row(
            f"{what}: speed over a bare loop's",
            "×",
            part,
            "ratio",
            aim=0.99,
            aim_is="at least",
            spread_path=(part, "ratio_spread"),
        ),
        _row(f"{what}: samples a second", "/s", part, "samples_per_s"),
        _row(f"{what}: the bare loop", "/s", part, "bare_samples_per_s"),
        _row(f"{what}: a step", "ms", part, "step_seconds"),
        _row(f"{what}: peak memory of a rank", "MB", part, "peak_bytes"),
        _row(f"{what}: the bare loop's", "MB", part, "bare_peak_bytes"),
    ]


def _around(part: str, what: str) -> Figure:
    return _row(f"around a step, {what}", "µs", part, "overhead_seconds", spread_path=(part, "overhead_spread"))


def _checkpoint(part: str, what: str, blocked: str, **aim: Any) -> list[Figure]:
    return [
        _row(f"{what} saved: training stands still", "ms", part, "sync", blocked),
        _row(f"{what} saved asynchronously: it stands still", "ms", part, "async", blocked, **aim),
        _row(f"{what} saved asynchronously, the first time", "ms", part, "async", f"first_{blocked}"),
        _row(f"{what} loaded", "ms", part, "load", "seconds"),
    ]


def _model(
    part: str, what: str, counted: str, aim: float | None = None, share_aim: float | None = None
) -> list[Figure]:
    return [
        _row(f"{what}: {counted} a second", "/s", part, "per_second", aim=aim, aim_is="at least"),
        _row(f"{what}: used of the GPU", "% of peak", part, "mfu", aim=share_aim, aim_is="at least"),
        _row(f"{what}: peak memory", "MB", part, "peak_bytes"),
    ]


_SHORT = {"aim": 0.1, "aim_is": "below"}

TRAINER_FIGURES: tuple[Figure, ...] = (
    *_compared("step", _SMALL),
    *_compared("step-compiled", f"{_SMALL}, compiled"),
    _around("around", "1 CPU process"),
    _around("around-two-ranks", "2 CPU ranks"),
    _row("a metrics line", "µs", "line", "seconds", spread_path=("line", "spread")),
    _row(
        f"{_SMALL}: telemetry's share of a step's processor time",
        "%",
        *("telemetry", "percent"),
        aim=0.5,
        aim_is="at most",
    ),
    *_checkpoint("checkpoint", "500 MB on the CPU", "blocked_seconds"),
    *_compared("gpu-step", "GPT-2 124M on GPUs"),
    _around("gpu-around", "1 GPU"),
    *_checkpoint("gpu-checkpoint", "500 MB on a GPU", "device_blocked_seconds", **_SHORT),
    _row(
        "GPT-2 124M saved asynchronously: a step takes longer",
        "ms",
        "gpu-checkpoint-in-training",
        "blocked_seconds",
        **_SHORT,
    ),
    *_model("resnet50", "ResNet-50", "images", aim=3500.0),
    *_model("gpt2", "GPT-2 124M", "tokens", aim=463_000.0),
    *_model("gpt2-medium", "GPT-2 350M", "tokens", share_aim=0.45),
    *_model("bert-large", "BERT-large, 128 tokens", "sequences"),
)
