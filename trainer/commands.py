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
    from trainer.preparing import Plan, prepare

    plan = Plan(tuple(given.inputs), given.tokenizer, given.context, given.held_out, given.column)
    if given.processes is not None and given.processes < 1:
        raise SettingsError("--processes must be 1 or more")
    try:
        done = prepare(plan, given.out, processes=given.processes)
    except KeyboardInterrupt:
        show("prepare: interrupted; the same command goes on from here", error=True)
        return 130
    show(f"{given.out}: {done.documents:,} documents, {done.tokens:,} tokens in {done.seconds:.1f} s")
    return 0


# --- all of them ------------------------------------------------------------------------------------------------------

_ADD: Mapping[str, tuple[Callable[[argparse.ArgumentParser], None], str]] = {
    "prepare": (
        _add_prepare,
        "Turns text, JSON lines and Parquet files into token files for --data tokens. Rows with messages are"
        " conversations, of which only the assistant's words are learnt.",
    ),
}
_RUN: Mapping[str, Callable[[argparse.Namespace], int]] = {"prepare": _prepare}

NAMES = tuple(_ADD)
