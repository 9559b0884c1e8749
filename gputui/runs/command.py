"""From a specification to the exact command of one attempt, and to the files that it names: placeholders filled in.
Pure, so that ``check``, the launch screen and the agent show and run the same thing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from gputui.runs.launchers import LAUNCHERS
from gputui.runs.launchers.base import Invocation, Placement
from gputui.runs.logs import NODES
from gputui.runs.spec import RunSpec, Scalar, known_spec
from gputui.store.runs import Run

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")

# An optional piece begins with an option or with name=; a list such as [0.9,0.999] or [{a},{b}] is a value.
_PIECE = re.compile(r"\[(?=-|[+~]{0,2}[A-Za-z_][\w.@/-]*=)")

# torchrun's agent gives its ranks this long after a SIGTERM; the shim's own grace starts at the same moment and ends
# later, so that torchrun's report of who failed is still written.
SHIM_MARGIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Launch:
    """What the shim starts: an argument vector (no shell ever sees it), the environment added to the user's own, the
    working directory, and how long a stop may take."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    grace_seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Launch:
        return cls(tuple(data["argv"]), dict(data["env"]), str(data["cwd"]), float(data["grace_seconds"]))


def format_value(value: Scalar) -> str:
    """A parameter as the text that a command line gets."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def shown_param(value: Scalar) -> str:
    """A parameter as a profile has it, for a person to read: ``null``, not nothing, where it has no value."""
    return "null" if value is None else format_value(value)


def substitute(text: str, values: Mapping[str, str]) -> str:
    """Replace ``{name}`` for the names in ``values``; other braces stay as they are, and what is put in is not looked
    at again."""
    return _PLACEHOLDER.sub(lambda match: values.get(match.group(1), match.group(0)), text)


def flag_tokens(params: Mapping[str, Scalar]) -> tuple[str, ...]:
    """``--key value`` for each parameter: underscores become dashes, None is left out, booleans are true or false."""
    tokens: list[str] = []
    for name, value in params.items():
        if value is not None:
            tokens += [f"--{name.replace('_', '-')}", format_value(value)]
    return tuple(tokens)


class PieceError(ValueError):
    """An optional piece that cannot be understood; the text is one line."""


def find_pieces(words: Sequence[str]) -> list[tuple[int, int]]:
    """The optional pieces ``[--option {parameter}]`` in a command line's words, as (first word, word after the last).

    Raises PieceError for one that is not closed, that holds another, or that no parameter decides.
    """
    found: list[tuple[int, int]] = []
    first, depth = 0, 0
    for index, word in enumerate(words):
        is_opening = _PIECE.match(word) is not None
        if depth and is_opening:
            raise PieceError(
                f"the optional piece {words[first]} … holds another, {word}; write them one after the other"
            )
        if is_opening:
            first = index
        elif not depth:
            continue
        depth += word.count("[") - word.count("]")
        if depth <= 0:
            depth = 0
            if not any(_PLACEHOLDER.search(part) for part in words[first : index + 1]):
                piece = " ".join(words[first : index + 1])
                raise PieceError(f"the optional piece {piece} names no {{parameter}} that decides whether it is there")
            found.append((first, index + 1))
    if depth:
        raise PieceError(f"the optional piece {words[first]} … is not closed by ]")
    return found


def expand(words: Sequence[str], params: Mapping[str, Scalar], run_dir: str, checkpoint: str | None) -> tuple[str, ...]:
    """A command line's words with everything put in.

    An optional piece is left out when a parameter in it is None or false; a word of it that is only a true parameter
    vanishes, so that ``[--amp {amp}]`` becomes the flag ``--amp``.
    """
    values = values_for(params, run_dir, checkpoint)
    decided: dict[str, Scalar] = {**params, "checkpoint": checkpoint}
    expanded: list[str] = []
    end = 0
    for first, after in find_pieces(words):
        expanded += [substitute(word, values) for word in words[end:first]]
        piece = [words[first][1:], *words[first + 1 : after]]
        piece[-1] = piece[-1][:-1]
        names = [name for word in piece for name in _PLACEHOLDER.findall(word)]
        if not any(decided.get(name, True) is None or decided.get(name) is False for name in names):
            expanded += [substitute(word, values) for word in piece if not _is_true_parameter(word, decided)]
        end = after
    return (*expanded, *(substitute(word, values) for word in words[end:]))


def _is_true_parameter(word: str, values: Mapping[str, Scalar]) -> bool:
    match = _PLACEHOLDER.fullmatch(word)
    return match is not None and values.get(match.group(1)) is True


def values_for(params: Mapping[str, Scalar], run_dir: str, checkpoint: str | None) -> dict[str, str]:
    """The values of placeholders."""
    return {
        **{k: format_value(v) for k, v in params.items()},
        "run_dir": run_dir,
        "checkpoint": checkpoint or "",
    }


def build_launch(
    spec: RunSpec,
    *,
    run_id: str,
    run_dir: str,
    attempt: int,
    params: Mapping[str, Scalar],
    placement: Placement,
    checkpoint: str | None,
) -> Launch:
    """The command of one attempt. The GPUs of ``placement`` are UUIDs or indices, as the profile asks."""
    values = values_for(params, run_dir, checkpoint)
    node_dir = str(PurePath(run_dir) / "attempts" / str(attempt) / NODES / str(placement.number))
    arguments = flag_tokens(params) if spec.args is None else expand(spec.args, params, run_dir, checkpoint)
    if checkpoint is not None and spec.checkpoints is not None:
        arguments += tuple(substitute(token, values) for token in spec.checkpoints.resume)
    program = expand(spec.program, params, run_dir, checkpoint)
    launcher = LAUNCHERS[spec.launcher]
    invocation = Invocation((*program, *arguments), node_dir, f"{run_id}.{attempt}")
    argv = launcher.argv(spec, placement, invocation)
    env = {
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "OMP_NUM_THREADS": "1",
        "TORCHELASTIC_ERROR_FILE": f"{node_dir}/error.json",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(placement.nodes[0].gpus),
        "GPUTUI_RUN_ID": run_id,
        "GPUTUI_RUN_DIR": run_dir,
        "GPUTUI_ATTEMPT": str(attempt),
        "GPUTUI_GRACE": f"{spec.grace_seconds:g}",
        "GPUTUI_METRICS": next(
            (substitute(source.path, values) for source in spec.metrics if source.kind == "jsonl" and source.path),
            f"{run_dir}/metrics.jsonl",
        ),
        **launcher.environment(placement, invocation),
    }
    if checkpoint is not None:
        env["GPUTUI_CHECKPOINT"] = checkpoint
    env |= {name: substitute(text, values) for name, text in spec.env.items()}
    return Launch(argv, env, substitute(spec.workdir, values), spec.grace_seconds + SHIM_MARGIN_SECONDS)


def without_gpus(launch: Launch) -> Launch:
    """The launch where another scheduler says which GPUs there are."""
    return replace(
        launch,
        env={
            name: value
            for name, value in launch.env.items()
            if name not in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
        },
    )


def checkpoint_directory(spec: RunSpec, run_dir: Path) -> Path | None:
    """Where the run's checkpoints appear, or None when its profile names no place."""
    return None if spec.checkpoints is None else in_run(spec.checkpoints.directory, spec, run_dir)


def in_run(text: str, spec: RunSpec, run_dir: Path) -> Path:
    """A path of the profile: placeholders filled in, relative ones from the working directory."""
    path = Path(substitute(text, values_for(spec.params, str(run_dir), None)))
    return path if path.is_absolute() else Path(spec.workdir) / path


def sink_target(template: str, params: Mapping[str, Scalar], *, run_id: str, run_dir: str) -> str:
    """Where a profile's sink writes for one run."""
    return substitute(template, {**values_for(params, run_dir, None), "run_id": run_id})


def sinks_of(run: Run, run_dir: Path) -> dict[str, str]:
    """The sinks of a stored run and where each writes, secrets left out as everywhere in the store."""
    spec = known_spec(run)
    if spec is None:
        return {}
    return {
        name: sink_target(template, spec.params, run_id=run.run_id, run_dir=str(run_dir))
        for name, template in spec.sinks.items()
    }
