"""Everything that scripts and fingers rely on: commands with their options, keys of the JSON that they print, actions
of the screen with their keys.

``python -m tests.compat.interface`` writes the list down; what it held before stays in it.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from gputui.cli.main import command
from gputui.store.database import open_writer
from gputui.tui.actions import ACTIONS
from tests.compat import homes
from tests.conftest import wait_until
from tests.machine import Machine

LIST = Path(__file__).with_name("interface.json")

Names = dict[str, list[str]]
Interface = dict[str, Names]


def interface(folder: Path) -> Interface:
    """``{commands: {command: options}, json: {command: key paths}, actions: {action: keys at places}}``."""
    return {"commands": commands(), "json": json_keys(folder), "actions": actions()}


def missing(older: Names, newer: Names) -> list[str]:
    """What only the older one has."""
    gone = [
        f"{name}: {one}"
        for name, ones in older.items()
        if name in newer
        for one in _each_choice(ones)
        if one not in _each_choice(newer[name])
    ]
    return [*gone, *(name for name in older if name not in newer)]


def _each_choice(ones: list[str]) -> list[str]:
    """``--to csv|jsonl`` as ``--to csv`` and ``--to jsonl``: an option may get another choice."""
    return [f"{option} {choice}".strip() for one in ones for option, _, choices in [one.partition(" ")]
            for choice in choices.split("|")]  # fmt: skip


def commands() -> Names:
    return dict(sorted(_commands("gputui", command)))


def _commands(name: str, one: click.Command) -> Iterator[tuple[str, list[str]]]:
    words = []
    for parameter in one.params:
        choices = "|".join(parameter.type.choices) if isinstance(parameter.type, click.Choice) else ""
        if isinstance(parameter, click.Option):
            words += [f"{option} {choices}".strip() for option in (*parameter.opts, *parameter.secondary_opts)]
        else:
            words.append(f"{str(parameter.name).upper()} {choices}".strip())
    yield name, sorted(words)
    if isinstance(one, click.Group):
        context = click.Context(one)
        for below in one.list_commands(context):
            found = one.get_command(context, below)
            assert found is not None
            yield from _commands(f"{name} {below}", found)


def actions() -> Names:
    found: dict[str, list[str]] = {}
    for action in ACTIONS:
        # A settings file may still have an action's former name.
        for name in {action.name, action.former or action.name}:
            found.setdefault(name, []).extend(f"{scope} {key}" for scope in action.scopes for key in action.keys)
    return {name: sorted(set(found[name])) for name in sorted(found)}


def json_keys(folder: Path) -> Names:
    """By command, of a home with a past and of one with an agent."""
    old = Machine(folder / "old")
    homes.unpack(homes.SCHEMA_29, old)
    with closing(open_writer(old.workspace.database)) as connection:
        # GPUs that an agent does not find are shown as lost for a day.
        connection.execute("UPDATE gpus SET last_seen_at = ?", (time.time(),))
    found = {}
    for words in (
        "ps", "show failing-1", "metrics failing-1", "gpus", "alerts --all", "alerts rules", "queue", "orphans",
        "profiles", "doctor", "agent status", "report failing-1", "policy show", "policy try --incident cuda_oom",
        "service status",
    ):  # fmt: skip
        done = old.call(*words.split(), "--json")
        found[words] = _paths(json.loads(done.stdout))
    found["--once"] = _paths(old.json("--once", "--readonly"))
    live = Machine(folder / "live")
    try:
        profile = live.profile()
        found["check PROFILE"] = _paths(live.json("check", profile))
        for words, state in (
            ("queue pause", None), ("run PROFILE --set steps=100000", "queued"), ("queue move steps-1 --first", None),
            ("queue resume", "running"), ("tag steps-1 +a", None), ("note steps-1 first try", None),
            ("rename steps-1 first", None), ("alerts silence gpu_hot", None), ("alerts ack --all", None),
            ("stop steps-1", "stopped"), ("resume steps-1", "running"), ("stop steps-1 --now", "stopped"),
            ("restart steps-1", "running"), ("stop steps-1", "stopped"), ("rm steps-1", None),
        ):  # fmt: skip
            found[words] = _paths(live.json(*words.replace("PROFILE", profile).split()))
            if state is not None:
                live.wait_for("steps-1", state)
            if state == "running":
                wait_until(lambda: (live.workspace.run_dir("steps-1") / "checkpoints/step_000010.pt").exists())
        words = "sweep PROFILE --set steps=5,6"
        found[words] = _paths(live.json(*words.replace("PROFILE", profile).split()))
        wait_until(lambda: live.rows("SELECT 1 FROM studies WHERE state = 'finished'"), what="the sweep's end")
        for words in (
            "studies", "study list", "study show", "study report",
            "study enqueue steps-sweep-1 --set steps=5", "study pause steps-sweep-1", "study resume steps-sweep-1",
            "study stop steps-sweep-1",
        ):  # fmt: skip
            found[words] = _paths(live.json(*words.split()))
    finally:
        live.close()
    return found


def _paths(value: Any) -> list[str]:
    return sorted(set(_walk(value, "")))


def _walk(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield f"{place}.{key}"
            yield from _walk(below, f"{place}.{key}")
    elif isinstance(value, list):
        for below in value:
            yield from _walk(below, f"{place}[]")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="gputui-") as folder_name:
        newer = interface(Path(folder_name))
    older: Interface = json.loads(LIST.read_text("utf-8")) if LIST.exists() else {}
    for part, names in newer.items():
        for name, ones in older.get(part, {}).items():
            names[name] = sorted({*ones, *names.get(name, ())})
    LIST.write_text(json.dumps(newer, indent=1, sort_keys=True) + "\n", "utf-8")
