"""Options of scripts, one kind of parser per row: all give the same record."""

from __future__ import annotations

from pathlib import Path

from gputui.profiles.init.roles import meaning_of
from gputui.profiles.init.script_options import Option
from gputui.profiles.init.script_survey import Survey, survey_script
from tests.tables import table


def survey(folder: Path, text: str) -> Survey:
    # Editors on Windows write a byte order mark.
    (folder / "a.py").write_text(f"\ufeff{text}")
    return survey_script(folder / "a.py")


# Each declares the batch size 16, a learning rate that the script computes, a flag that is off, and data that it needs.
PARSERS = {
    "argparse": """
import argparse
p = argparse.ArgumentParser()
p.add_argument("-b", "--batch-size", type=int, default=16, help="per step")
p.add_argument("--lr", default=BASE / 2)
p.add_argument("--amp", action="store_true")
p.add_argument("--data", required=True)
p.add_argument("--sizes", nargs="+")
p.add_argument("--version", action="version")
""",
    "click": """
import click
@click.command()
@click.option("--batch-size", "-b", default=16, help="per step")
@click.option("--lr", default=BASE / 2)
@click.option("--amp/--no-amp")
@click.option("--data", required=True)
def main(**options): ...
""",
    "typer": """
import typer
from typing import Annotated
from typer import Option
app = typer.Typer()
@app.command()
def main(
    batch_size: Annotated[int, typer.Option(help="per step")] = 16,
    lr: float = Option(BASE / 2, "--lr"),
    amp: bool = typer.Option(False),
    data: str = typer.Option(..., "--data"),
): ...
""",
    "absl": """
from absl import flags
flags.DEFINE_integer("batch_size", 16, "per step")
flags.DEFINE_float("lr", BASE / 2, "x")
flags.DEFINE_bool("amp", False, "x")
flags.DEFINE_string("data", None, "x")
""",
    "fire": """
import fire
def train(data, batch_size=16, lr=BASE / 2, amp=False):
    ...
fire.Fire(train)
""",
    "fastcore": """
from fastcore.script import *
@call_parse
def main(
    data: str,
    batch_size: int = 16,  # per step
    lr: float = BASE / 2,
    amp: bool = False,
): ...
""",
    "hf": """
from dataclasses import dataclass, field
from transformers import HfArgumentParser
@dataclass
class Arguments:
    data: str = field(metadata={"help": "x"})
    batch_size: int = field(default=16, metadata={"help": "per step"})
    lr: float = BASE
    amp: bool = False
HfArgumentParser(Arguments).parse_args_into_dataclasses()
""",
    "dataclass": """
import tyro
from dataclasses import dataclass
@dataclass
class Args:
    data: str
    batch_size: int = 16
    \"\"\"per step\"\"\"
    lr: float = BASE
    amp: bool = False
args = tyro.cli(Args)
""",
    "globals": """
batch_size = 4 * 4
lr = BASE
amp = False
data = "x"
exec(open('configurator.py').read())
""",
}


@table("style", PARSERS)
def test_a_way_of_declaring(tmp_path: Path, style: str) -> None:
    options_survey = survey(tmp_path, PARSERS[style])
    options = options_survey.options
    assert options_survey.style == style
    assert options_survey.is_certain
    assert set(options) - {"sizes"} == {"batch_size", "amp", "data"} | ({"lr"} if style != "globals" else set())
    batch = options["batch_size"]
    amp = options["amp"]
    assert (batch.default, amp.default) == (16, False)
    expected = "" if style in ("fire", "globals") else "per step"
    assert batch.help == expected
    if style in ("argparse", "click"):
        assert (batch.flag, batch.others) == ("--batch-size", ("-b",))
    assert amp.is_flag == (style not in ("hf", "globals"))
    if style != "globals":
        assert not options["lr"].is_known
        assert options["data"].is_required or style == "absl"


NEGATIVES = [
    ("argparse", "action='store_true'", "action=argparse.BooleanOptionalAction", "--no-amp"),
    ("click", "--amp/--no-amp", "--amp/--exact", "--exact"),
    ("typer", "typer.Option(False)", "typer.Option(False)", "--no-amp"),
    ("absl", "x", "x", "--noamp"),
    ("fire", "x", "x", "--noamp"),
    ("dataclass", "x", "x", "--no-amp"),
]


@table(("style", "old", "new", "flag"), NEGATIVES)
def test_what_turns_a_flag_off(tmp_path: Path, style: str, old: str, new: str, flag: str) -> None:
    text = PARSERS[style].replace('"store_true"', "'store_true'").replace(old, new)
    assert flag in survey(tmp_path, text).options["amp"].negatives


def test_nested_classes_and_their_bases(tmp_path: Path) -> None:
    options = survey(
        tmp_path,
        "import pyrallis\nfrom dataclasses import dataclass, field\n@dataclass\nclass Optim:\n    lr: float = 0.1\n"
        "@dataclass\nclass Base:\n    seed: int = 0  # of everything\n@dataclass\nclass Config(Base):\n"
        "    optim: Optim = field(default_factory=Optim)\n@pyrallis.wrap()\ndef main(cfg: Config): ...\n",
    ).options
    assert {name: (option.flag, option.default, option.help) for name, option in options.items()} == {
        "seed": ("--seed", 0, "of everything"), "optim.lr": ("--optim.lr", 0.1, ""),
    }  # fmt: skip


def test_a_configuration_of_hydra(tmp_path: Path) -> None:
    for name, text in {
        "config": "defaults: [model: small, optional /exp: one, data@inputs: big, _self_]\n"
        "seed: 0\ndata: {batch_size: 32, root: '???', n: '${seed}'}\n",
        "model/small": "defaults: [block: wide]\nwidth: 64\nlayers: [1, 2]\n",
        "model/block/wide": "depth: 3\n",
        "exp/one": "# @package _global_\nepochs: 5\n",
        "data/big": "size: 9\n",
    }.items():
        path = tmp_path / "conf" / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    options_survey = survey(
        tmp_path,
        "import hydra\n@hydra.main(version_base=None, config_path='conf', config_name='config')\ndef f(c): ...\n",
    )
    options = options_survey.options
    assert options_survey.is_certain
    assert options_survey.style == "hydra"
    assert {name: option.default for name, option in options.items() if option.is_known} == {
        "model.block.depth": 3, "model.width": 64, "epochs": 5, "inputs.size": 9, "seed": 0, "data.batch_size": 32,
    }  # fmt: skip
    assert options["data.root"].is_required
    assert not options["model.layers"].is_known


UNCERTAIN = {
    "two parsers": "import argparse\nq = argparse.ArgumentParser()\np = argparse.ArgumentParser()\n",
    "subcommands": "import argparse\np = argparse.ArgumentParser()\ns = p.add_subparsers()\n",
    "defaults of a file": "import argparse\np = argparse.ArgumentParser()\np.set_defaults(**cfg)\n",
    "the rest is another's": "import argparse\np = argparse.ArgumentParser()\np.parse_known_args()\n",
    "a group of commands": "import click, argparse\n@click.group()\ndef cli(): ...\np = argparse.ArgumentParser()\n",
    "a file of defaults": "import configargparse\np = configargparse.ArgParser(default_config_files=['a'])\n",
    "a module beside it": "import argparse, beside\np = argparse.ArgumentParser()\n",
}


@table("case", UNCERTAIN)
def test_a_parser_that_is_not_all(tmp_path: Path, case: str) -> None:
    (tmp_path / "beside.py").write_text("import argparse\nargparse.ArgumentParser().add_argument('--x')\n")
    options_survey = survey(tmp_path, f"{UNCERTAIN[case]}p.add_argument('--lr', default=0.1)\n")
    assert "lr" in options_survey.options
    assert not options_survey.is_certain


MEANINGS: list[tuple[str, str, str | None]] = [
    # the option, its help, and the role with its scope
    ("batch_size", "", "batch_size"), ("b", "batch size for dataloader", "batch_size"), ("bs", "", "batch_size"),
    ("data.batch_size", "", "batch_size"), ("train.micro_batch_size", "", "batch_size"),
    ("batchSize", "", "batch_size"), ("samples", "", None), ("samples_per_gpu", "", "batch_size"),
    ("per_device_train_batch_size", "", "batch_size"), ("per_device_eval_batch_size", "", None),
    ("global-batch-size", "", "batch_size global"), ("b", "total batch size of all GPUs", "batch_size global"),
    ("batch_size", "mini-batch size, this is the total batch size of all GPUs", "batch_size global"),
    ("test_batch_size", "input batch size for testing", None), ("tb", "input batch size for testing", None),
    ("eval.batch_size", "", None), ("rollout_batch_size", "", None), ("batch_norm", "", None),
    ("num_batches", "", None), ("checkpointing_steps", "", None),
    ("log_interval", "how many batches to wait before logging", None), ("steps", "steps of one batch size each", None),
    ("accum_iter", "", "grad_accum"), ("n", "number of gradient accumulation steps", "grad_accum"), ("acc", "", None),
    ("eta", "learning rate", "lr"), ("gamma", "Learning rate step gamma", None), ("lr_decay", "", None),
    ("min_lr", "", None), ("base_lr", "", "lr"), ("LR", "", "lr"), ("optim.lr", "", "lr"),
    ("j", "number of data loading workers (default: 4)", "num_workers"), ("workers", "", "num_workers"),
    ("resume", "", "resume"), ("r", "resume from checkpoint", "resume"), ("pretrained", "weights to begin with", None),
    ("load", "Load model from a .pth file", "resume"), ("checkpoint", "", "resume"), ("ckpt_path", "", "resume"),
    ("xgb_model", "model to continue from", "resume"),
    ("checkpoint", "where to save the model", None), ("load", "pretrained backbone", None), ("resume_epoch", "", None),
]  # fmt: skip


@table(("name", "text", "expected"), MEANINGS)
def test_what_an_option_means(name: str, text: str, expected: str | None) -> None:
    default = None if expected == "resume" else 4
    meaning = meaning_of(name, text, default)
    summary = None if meaning is None else " ".join(filter(None, (meaning.role, meaning.scope)))
    assert summary == expected


def test_positional_arguments_and_many_values(tmp_path: Path) -> None:
    options = survey(
        tmp_path,
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('data')\np.add_argument('more', nargs='*')\n"
        "p.add_argument('--set', action='append')\n",
    ).options
    assert options["data"] == Option("", "data", is_required=True)
    assert options["more"].takes_many
    assert options["set"].takes_many
