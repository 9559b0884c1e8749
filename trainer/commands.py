"""What the trainer does besides training: ``python -m trainer prepare …``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from trainer.errors import SettingsError, show


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{self.prog.removeprefix('python -m trainer ')}: {message}; --help lists what it takes")


def parser_of(name: str) -> argparse.ArgumentParser:
    """The command line of a command, for its --help and for checking what others write down."""
    add, description = _ADD[name]
    parser = _Parser(prog=f"python -m trainer {name}", description=description, allow_abbrev=False)
    add(parser)
    return parser


def run(name: str, arguments: Sequence[str]) -> int:
    """Runs a command; its exit code. Raises TrainerError for what a person can mend."""
    return _RUN[name](parser_of(name).parse_args(arguments))


# --- prepare ----------------------------------------------------------------------------------------------------------


def _add_prepare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("inputs", nargs="+", type=Path, metavar="INPUT", help="files, or folders of files")
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="FOLDER", help="a Hugging Face tokenizer")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the token files go")
    parser.add_argument("--context", type=int, required=True, metavar="N", help="the --context to train with")
    parser.add_argument(
        "--column", default="text", metavar="NAME", help="the text of rows that have no messages (default: text)"
    )
    parser.add_argument(
        "--held-out",
        type=int,
        default=25,
        metavar="N",
        help="one document in N is held out, unless files are named val, validation or test (default: 25)",
    )
    parser.add_argument("--processes", type=int, metavar="N", help="default: as many as there are cores")


def _prepare(given: argparse.Namespace) -> int:
    from trainer.preparing import PreparationPlan, prepare

    plan = PreparationPlan(tuple(given.inputs), given.tokenizer, given.context, given.held_out, given.column)
    if given.processes is not None and given.processes < 1:
        raise SettingsError("--processes must be 1 or more")
    try:
        done = prepare(plan, given.out, processes=given.processes)
    except KeyboardInterrupt:
        show("prepare: interrupted; the same command goes on from here", error=True)
        return 130
    show(f"{given.out}: {done.documents:,} documents, {done.tokens:,} tokens in {done.seconds:.1f} s")
    return 0


# --- export and sample ------------------------------------------------------------------------------------------------

_WEIGHTS = ("last", "ema", "best")
_WEIGHTS_HELP = "those of the newest checkpoint (default), the averaged ones in it, or those that measured best"


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, or a checkpoint")
    parser.add_argument("--to", choices=("hf",), required=True, help="hf: a folder that transformers loads")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default: hf in the run's folder")
    parser.add_argument("--weights", choices=_WEIGHTS, default="last", help=_WEIGHTS_HELP)


def _export(given: argparse.Namespace) -> int:
    from trainer.exporting import export

    beside = given.run if given.run.is_dir() else given.run.parent
    out = given.out or beside / "hf"
    done = export(given.run, out, given.weights)
    show(f"{out}: {type(done.network).__name__} of step {done.step}, from {done.checkpoint}")
    return 0


def _add_sample(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="CHECKPOINT", help="a checkpoint, or a run's folder")
    parser.add_argument("--prompt", action="append", required=True, metavar="TEXT", help="may be given several times")
    parser.add_argument("--weights", choices=_WEIGHTS, default="last", help=_WEIGHTS_HELP)
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="the most in an answer (default: 128)")
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="X", help="0 (default): the most likely token each time"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="with a temperature (default: 0)")
    parser.add_argument("--plain", action="store_true", help="continue the text, instead of answering it in a chat")


def _sample(given: argparse.Namespace) -> int:
    import torch

    from trainer.answering import answer
    from trainer.exporting import restore

    if given.tokens < 1 or given.temperature < 0:
        raise SettingsError("--tokens must be 1 or more, and --temperature 0 or more")
    restored = restore(given.run, given.weights)
    for prompt in given.prompt:
        torch.manual_seed(given.seed)
        show(answer(restored, prompt, tokens=given.tokens, temperature=given.temperature, plain=given.plain))
    return 0


# --- all of them ------------------------------------------------------------------------------------------------------

_ADD: Mapping[str, tuple[Callable[[argparse.ArgumentParser], None], str]] = {
    "prepare": (
        _add_prepare,
        "Turns text, JSON lines and Parquet files into token files for --data tokens. Rows with messages are"
        " conversations, of which only the assistant's words are learnt.",
    ),
    "export": (_add_export, "Writes the weights of a run as a model of transformers, with config and tokenizer."),
    "sample": (_add_sample, "Answers prompts with the weights of a run."),
}
_RUN: Mapping[str, Callable[[argparse.Namespace], int]] = {"prepare": _prepare, "export": _export, "sample": _sample}

NAMES = tuple(_ADD)
