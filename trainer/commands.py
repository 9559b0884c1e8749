"""Commands beside training, ``python -m trainer prepare …``. Each imports what it needs when it runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from trainer.errors import SettingsError, show


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{self.prog.removeprefix('python -m trainer ')}: {message}; --help lists what it takes")


def parser_of(name: str) -> argparse.ArgumentParser:
    """The command line of a command, for its --help and for checking what others write down."""
    parser = _Parser(prog=f"python -m trainer {name}", allow_abbrev=False)
    _COMMANDS[name](parser)
    return parser


def run(name: str, arguments: Sequence[str]) -> int:
    """Run a command; its exit code. Raises TrainerError for what a person can mend."""
    options = parser_of(name).parse_args(arguments)
    code: int = options.command(options)
    return code


def _add_prepare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Turn text, JSON lines and Parquet files into token files; of conversations answers are learnt."
    )
    parser.set_defaults(command=_prepare)
    parser.add_argument("inputs", nargs="+", type=Path, metavar="INPUT", help="files, or folders of files")
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="FOLDER", help="a Hugging Face tokenizer")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the token files go")
    parser.add_argument("--context", type=int, required=True, metavar="N", help="the --context to train with")
    column = "the text of rows that have no messages (default: text)"
    parser.add_argument("--column", default="text", metavar="NAME", help=column)
    held_out = "one document in N is held out, unless files are named val, validation or test (default: 25)"
    parser.add_argument("--held-out", type=int, default=25, metavar="N", help=held_out)
    parser.add_argument("--processes", type=int, metavar="N", help="default: as many as there are cores")


def _prepare(options: argparse.Namespace) -> int:
    from trainer.preparing import PreparationPlan, prepare

    plan = PreparationPlan(tuple(options.inputs), options.tokenizer, options.context, options.held_out, options.column)
    if options.processes is not None and options.processes < 1:
        raise SettingsError("--processes must be 1 or more")
    try:
        done = prepare(plan, options.out, processes=options.processes)
    except KeyboardInterrupt:
        show("prepare: interrupted; the same command goes on from here", error=True)
        return 130
    show(f"{options.out}: {done.documents:,} documents, {done.tokens:,} tokens in {done.seconds:.1f} s")
    return 0


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, or a checkpoint")
    weights = "those of the newest checkpoint (default), the averaged ones in it, or those that measured best"
    parser.add_argument("--weights", choices=("last", "ema", "best"), default="last", help=weights)


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.description = "Write the weights of a run as a model of transformers."
    parser.set_defaults(command=_export)
    _add_run(parser)
    to = "hf (default): a folder that transformers loads, or of adapters peft"
    parser.add_argument("--to", choices=("hf",), default="hf", help=to)
    parser.add_argument("--merge", action="store_true", help="adapters are added to the weights below them")
    out = "default: hf in the run's folder, with --merge hf-merged"
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=out)


def _export(options: argparse.Namespace) -> int:
    from trainer.exporting import export

    folder = options.run if options.run.is_dir() else options.run.parent
    name = "hf-merged" if options.merge else "hf"
    out = options.out or folder / name
    done = export(options.run, out, options.weights, merge=options.merge)
    show(f"{out}: {type(done.network).__name__} of step {done.step}, from {done.checkpoint}")
    return 0


def _add_sample(parser: argparse.ArgumentParser) -> None:
    parser.description = "Answer prompts with the weights of a run."
    parser.set_defaults(command=_sample)
    _add_run(parser)
    parser.add_argument("--prompt", action="append", required=True, metavar="TEXT", help="may be given several times")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="the most in an answer (default: 128)")
    temperature = "0 (default): the most likely token each time"
    parser.add_argument("--temperature", type=float, default=0.0, metavar="X", help=temperature)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="with a temperature (default: 0)")
    parser.add_argument("--plain", action="store_true", help="continue the text, instead of answering it in a chat")


def _sample(options: argparse.Namespace) -> int:
    import torch

    from trainer.answering import answer
    from trainer.exporting import restore

    if options.tokens < 1 or options.temperature < 0:
        raise SettingsError("--tokens must be 1 or more, and --temperature 0 or more")
    restored = restore(options.run, options.weights)
    for prompt in options.prompt:
        torch.manual_seed(options.seed)
        show(answer(restored, prompt, tokens=options.tokens, temperature=options.temperature, plain=options.plain))
    return 0


_COMMANDS = {"prepare": _add_prepare, "export": _add_export, "sample": _add_sample}

NAMES = tuple(_COMMANDS)
