"""Every setting of the trainer: its type, default, limits, flag and help text, declared once in `Settings`.

Flags are the field names with dashes (``--batch-size``); underscores are accepted as well. This module imports no
torch, so that a wrong flag is answered at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

from trainer import faults
from trainer.errors import SettingsError


def _setting(
    default: Any,
    text: str,
    *,
    at_least: float | None = None,
    more_than: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    limits = {"at_least": at_least, "more_than": more_than, "at_most": at_most, "choices": choices}
    return field(default=default, metadata={"help": text, **limits})


_LATER = Path()  # a path that depends on the task and the environment


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run does. Times are in seconds, paths are as given; `from_arguments` fills in the rest."""

    task: str = _setting("digits", "what to train", choices=("digits", "lm"))
    steps: int = _setting(300, "optimizer steps in the whole run, resumed ones included", at_least=1)
    batch_size: int = _setting(16, "samples per rank and micro batch", at_least=1)
    grad_accum: int = _setting(3, "micro batches per optimizer step", at_least=1)
    seed: int = _setting(0, "decides the initial weights, the order of the data and dropout", at_least=0)

    lr: float = _setting(2e-3, "peak learning rate", more_than=0)
    warmup_steps: int = _setting(20, "steps of linear warm-up before the cosine decay", at_least=0)
    final_lr_ratio: float = _setting(0.05, "last learning rate as a share of the peak", at_least=0, at_most=1)
    weight_decay: float = _setting(0.01, "AdamW's decay, for matrices only", at_least=0)
    grad_clip: float = _setting(1.0, "largest gradient norm; 0 measures without clipping", at_least=0)

    width: int = _setting(16, "channels (digits) or embedding size (lm, a multiple of 32)", at_least=8)
    depth: int = _setting(2, "residual blocks", at_least=1)
    context: int = _setting(128, "bytes that the language model sees at once", at_least=8)
    dropout: float = _setting(0.1, "share of activations dropped in training", at_least=0, at_most=0.9)
    gradient_checkpointing: bool = _setting(False, "recompute activations in backward to save memory")

    device: str = _setting("auto", "auto takes a GPU per rank where there is one", choices=("auto", "cpu", "cuda"))
    precision: str = _setting("fp32", "bf16 and fp16 use autocast", choices=("fp32", "bf16", "fp16"))
    deterministic: bool = _setting(True, "same seed, same result, also on GPUs (where it costs some speed)")
    timeout: float = _setting(600.0, "seconds that a rank waits for the others before it fails", more_than=0)
    # Just less than torchrun waits before it kills.
    stop_timeout: float = _setting(25.0, "seconds that a step may still take after a stop signal", more_than=0)

    output_dir: Path = _setting(_LATER, "default: $GPUTUI_RUN_DIR, else runs/TASK")  # noqa: RUF009
    metrics: Path = _setting(_LATER, "JSON lines; default: $GPUTUI_METRICS, else OUTPUT_DIR/metrics.jsonl")  # noqa: RUF009
    log_every: int = _setting(10, "steps between lines on standard output", at_least=1)
    rank_metrics_every: int = _setting(10, "steps between the timings of each further rank; 0: none", at_least=0)
    validate_every: int = _setting(50, "steps between validations; 0: only at the end", at_least=0)

    checkpoint_dir: Path = _setting(_LATER, "default: OUTPUT_DIR/checkpoints")  # noqa: RUF009
    checkpoint_every: int = _setting(50, "steps between checkpoints; 0: only at the end", at_least=0)
    keep: int = _setting(3, "newest checkpoints to keep", at_least=1)
    resume: str = _setting("", "a checkpoint, auto (newest valid) or none; default: $GPUTUI_CHECKPOINT, else none")

    inject: tuple[str, ...] = _setting((), "faults on purpose, such as oom@step=40; see docs/trainer.md")


# Where a task wants something other than the defaults above, which suit `digits`.
TASK_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "digits": {},
    "lm": {
        "steps": 200,
        "batch_size": 8,
        "lr": 3e-3,
        "weight_decay": 0.1,
        "width": 128,
        "dropout": 0.0,
        "validate_every": 100,
    },
}

# Settings that a checkpoint's weights depend on: another value cannot load them.
SHAPE_SETTINGS = ("task", "width", "depth", "context")

_TYPES: Mapping[str, Any] = get_type_hints(Settings)


def from_arguments(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[Settings, bool]:
    """The settings that a command line and an environment describe, and whether ``--print-config`` was given.

    Raises SettingsError with one line naming the flag, and the nearest valid one where a flag is unknown.
    """
    parser = _parser()
    given, rest = parser.parse_known_args([_dashed(argument) for argument in arguments])
    if rest:
        raise SettingsError(_unknown(rest[0]))
    values = vars(given)
    show = bool(values.pop("print_config", False))
    values = {**TASK_DEFAULTS.get(values.get("task", "digits"), {}), **values}
    if "inject" in values:
        values["inject"] = tuple(str(fault) for text in values["inject"] for fault in faults.parse(text))
    settings = Settings(**values)
    _check(settings)
    return _with_paths(settings, values, environment), show


def as_json(settings: Settings) -> str:
    """All settings as indented JSON, paths as text."""
    return json.dumps(as_plain(settings), indent=2)


def as_plain(settings: Settings) -> dict[str, Any]:
    """All settings as numbers, text and lists: what a checkpoint stores."""
    plain: dict[str, Any] = {}
    for name, value in dataclasses.asdict(settings).items():
        plain[name] = str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
    return plain


def flag(name: str) -> str:
    """The command-line flag of a setting."""
    return "--" + name.replace("_", "-")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(message.removeprefix("argument "))


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m trainer",
        description="Trains under torchrun (one process per GPU, or CPU ranks) or as a single process.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    for setting in dataclasses.fields(Settings):
        kind = _TYPES[setting.name]
        shown = "" if setting.default in ("", (), Path()) else f" (default: {setting.default})"
        choices = "|".join(setting.metadata["choices"])
        options: dict[str, Any] = {"help": setting.metadata["help"] + shown, "metavar": choices or kind_name(kind)}
        if kind is bool:
            options.update(nargs="?", const=True, type=_truth, metavar="true|false")
        elif kind is int:
            options.update(type=_whole)
        elif kind is float:
            options.update(type=_number)
        elif kind is Path:
            options.update(type=Path)
        elif setting.name == "inject":
            options.update(action="append", metavar="FAULT")
        parser.add_argument(flag(setting.name), **options)
    parser.add_argument("--print-config", action="store_true", help="print every setting as JSON and leave")
    return parser


def kind_name(kind: Any) -> str:
    """The word for a type in the help text."""
    return {int: "N", float: "X", Path: "PATH", str: "NAME"}.get(kind, "TEXT")


def _dashed(argument: str) -> str:
    """``--batch_size=3`` as ``--batch-size=3``; anything that is not a flag stays as it is."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def _unknown(argument: str) -> str:
    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}: every setting is given as --name value"
    name = argument.partition("=")[0]
    known = [flag(setting.name) for setting in dataclasses.fields(Settings)] + ["--print-config"]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"unknown setting {name}" + (f"; did you mean {near[0]}?" if near else "; --help lists them")


def _truth(text: str) -> bool:
    if text.lower() in ("true", "yes", "on", "1"):
        return True
    if text.lower() in ("false", "no", "off", "0"):
        return False
    raise argparse.ArgumentTypeError(f"expected true or false, got {text!r}")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from None


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}")
    return number


def _check(settings: Settings) -> None:
    for setting in dataclasses.fields(settings):
        value = getattr(settings, setting.name)
        name, limits = flag(setting.name), setting.metadata
        if limits["choices"] and value not in limits["choices"]:
            raise SettingsError(f"{name} must be one of {', '.join(limits['choices'])}, got {value!r}")
        if limits["at_least"] is not None and value < limits["at_least"]:
            raise SettingsError(f"{name} must be at least {limits['at_least']}, got {value}")
        if limits["more_than"] is not None and value <= limits["more_than"]:
            raise SettingsError(f"{name} must be more than {limits['more_than']}, got {value}")
        if limits["at_most"] is not None and value > limits["at_most"]:
            raise SettingsError(f"{name} must be at most {limits['at_most']}, got {value}")
    unit = 32 if settings.task == "lm" else 8
    if settings.width % unit:
        raise SettingsError(f"--width must be a multiple of {unit} for --task {settings.task}, got {settings.width}")


def _with_paths(settings: Settings, given: Mapping[str, Any], environment: Mapping[str, str]) -> Settings:
    """The paths that were not given, from the environment of a supervisor or from the defaults."""
    output = given.get("output_dir") or Path(environment.get("GPUTUI_RUN_DIR") or Path("runs") / settings.task)
    metrics = given.get("metrics") or Path(environment.get("GPUTUI_METRICS") or output / "metrics.jsonl")
    return dataclasses.replace(
        settings,
        output_dir=output,
        metrics=metrics,
        checkpoint_dir=given.get("checkpoint_dir") or output / "checkpoints",
        resume=given.get("resume") or environment.get("GPUTUI_CHECKPOINT") or "none",
    )
