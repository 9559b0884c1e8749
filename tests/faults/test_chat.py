"""From raw conversations to an exported model that answers, by one command, killed on the way twice: while it prepares
the tokens and while it trains. What comes out is what comes out without the kills, bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gputui.runs.attempt_processes import processes_of
from tests.conftest import wait_until
from tests.machine import Machine
from tests.trainer.instructions import conversations, write_tokenizer

LLAMA = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES = {"model_type": "llama", "vocab_size": 384, "max_position_embeddings": 64, "intermediate_size": 128}
STEPS = 140
SETTINGS = {"context": 64, "steps": STEPS, "batch_size": 16, "grad_accum": 1, "lr": 0.01, "precision": "fp32"}
SETTINGS |= {"deterministic": "true", "validate_every": 70, "answer_every": 70, "checkpoint_every": 20}

ASK = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
model, tokenizer = (kind.from_pretrained(sys.argv[1]) for kind in (AutoModelForCausalLM, AutoTokenizer))
messages = [{"role": "user", "content": "What does a cow do?"}]
asked = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")["input_ids"]
print(tokenizer.decode(model.generate(asked, max_new_tokens=16)[0, asked.shape[1] :], skip_special_tokens=True))
"""


def start(machine: Machine, name: str, *words: str) -> Path:
    """The profile on the conversations in the machine's folder; the run's folder."""
    paths = {key: machine.folder / value for key, value in (("data_dir", "chats"), ("tokenizer", "tokenizer"))}
    changes = {**paths, "model": machine.folder / "config.json", **SETTINGS}
    sets = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    machine.gputui("run", "smollm-chat", "--gpus", "0", "--name", name, *sets, *words, timeout=1500)
    return machine.workspace.run_dir(f"{name}-1")


def kill_rank(folder: Path) -> None:
    """The rank itself, which is older than the processes that it has started. PIDs do not tell: they begin again."""
    of_rank = [process.identity for process in processes_of(folder) if process.rank == 0]
    os.kill(min(of_rank, key=lambda identity: identity.start_ticks).pid, signal.SIGKILL)


def contents(folder: Path) -> dict[str, bytes]:
    """The tokens and the exported model."""
    names = [path for part in ("tokens", "hf") for path in (folder / part).rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in names if path.name != "journal.jsonl"}


@pytest.mark.long
@pytest.mark.timeout(2000)
def test_a_chat_model_survives_two_kills_bit_for_bit(machine: Machine) -> None:
    (machine.folder / "chats").mkdir()
    rows = [json.dumps(row) + "\n" for row in conversations(6000)]
    for number in range(60):
        (machine.folder / "chats" / f"{number:02d}.jsonl").write_text("".join(rows[number::60]))
    write_tokenizer(machine.folder / "tokenizer")
    (machine.folder / "config.json").write_text(json.dumps(LLAMA | SIZES | {"tie_word_embeddings": True}))

    folder = start(machine, "killed")
    journal = folder / "tokens" / "journal.jsonl"
    wait_until(lambda: journal.is_file() and journal.read_text().count("\n") > 4, 400, "some prepared slices")
    kill_rank(folder)
    wait_until(lambda: len(machine.rows("SELECT 1 FROM incidents")) == 1, 200, "the first incident")
    wait_until(lambda: len(machine.steps("killed-1")) > 50, 400, "fifty steps")
    kill_rank(folder)
    machine.wait_for("killed-1", "succeeded", "failed", timeout=400)
    assert machine.state("killed-1") == "succeeded", machine.gputui("explain", "killed-1")
    attempts = machine.json("show", "killed-1")["attempts"]
    assert [(one["incident"] or {}).get("kind") for one in attempts] == ["killed", "killed", None]
    assert {attempt for attempt, _ in machine.steps("killed-1")} == {2, 3}, "the first kill came after the preparing"
    resumed_from = int(Path(attempts[2]["resumed_from"]).stem.removeprefix("step_"))
    assert resumed_from in range(40, STEPS, 20), "the second kill came after the training"

    straight = start(machine, "straight", "--wait")
    assert contents(folder) == contents(straight)
    answered = subprocess.run(
        [sys.executable, "-c", ASK, str(folder / "hf")], capture_output=True, text=True, cwd=machine.folder
    )
    assert answered.stdout == "A cow moos.\n", answered.stderr
