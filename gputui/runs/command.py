"""The exact command of one attempt, with placeholders filled in. Pure: ``check``, the launch screen
and the agent show and run the same one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from gputui.core.yaml_forms.quantities import is_number
from gputui.runs.checkpoint_names import step_in_name
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.launchers.base import Invocation, Placement
from gputui.runs.learned_checkpoints import LEARNED
from gputui.runs.logs import NODES
from gputui.runs.spec import METRICS_FILE, RunSpec, Scalar
from gputui.runs.stored_spec import known_spec
from gputui.store.runs import Run

PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
"""A name in braces, whose value takes its place."""

PIECE_START = re.compile(r"\[(?=--?[A-Za-z]|[+~]{0,2}[A-Za-z_][\w.@/-]*=)")
"""The beginning of an optional piece: an option or name=. A list such as [0.9,0.999] or [{a},{b}] is a value."""

# The shim's grace exceeds that of torchrun's agent by this much, so that torchrun can still write
# which rank failed.
SHIM_MARGIN_SECONDS = 5.0


class Launch(Struct, frozen=True):
    """The command of an attempt.

    Attributes:
        argv: run without a shell.
        env: added to the user's environment.
        cwd: the working directory.
        grace_seconds: how long a stop may take.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    grace_seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Launch:
        return msgspec.convert(data, cls)


def format_value(value: Scalar) -> str:
    """A parameter as text on a command line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        if value:
            return "true"
        return "false"
    if isinstance(value, float):
        return repr(value)
    return str(value)


def shown_param(value: Scalar) -> str:
    """A parameter as a person reads it in a profile: ``null`` if it has no value."""
    if value is None:
        return "null"
    return format_value(value)


def assignments(params: Mapping[str, Scalar]) -> list[str]:
    """``name=value`` for each parameter, to the last digit, as `gputui run --set` reads it."""
    return [f"{name}={shown_param(value)}" for name, value in params.items()]


def substitute(text: str, values: Mapping[str, str]) -> str:
    """Replace ``{name}`` for the names in ``values``, once; other braces stay."""
    return PLACEHOLDER.sub(lambda match: values.get(match.group(1), match.group(0)), text)


def flag_tokens(params: Mapping[str, Scalar]) -> tuple[str, ...]:
    """``--key value`` for each parameter: dashes for underscores, None is left out."""
    tokens: list[str] = []
    for name, value in params.items():
        if value is not None:
            tokens += [f"--{name.replace('_', '-')}", format_value(value)]
    return tuple(tokens)


class PieceError(ValueError):
    """An optional piece that is malformed; the text is one line."""


def find_pieces(argv: Sequence[str]) -> list[tuple[int, int]]:
    """The optional pieces ``[--option {parameter}]`` in words, each by its first word and the word after its last.
    Raises PieceError for one that is not closed, holds another, or has no parameter."""
    pieces: list[tuple[int, int]] = []
    first = 0
    depth = 0
    for index, word in enumerate(argv):
        if PIECE_START.match(word) is not None:
            if depth:
                raise PieceError(
                    f"the optional piece {argv[first]} … holds another, {word}; write them one after the other"
                )
            first = index
        elif not depth:
            continue
        depth += word.count("[") - word.count("]")
        if depth <= 0:
            depth = 0
            piece = " ".join(argv[first : index + 1])
            if not word.endswith("]"):
                raise PieceError(f"the optional piece {argv[first]} … ends within a word, {word}")
            if not PLACEHOLDER.search(piece):
                raise PieceError(f"the optional piece {piece} names no {{parameter}} that decides whether it is there")
            pieces.append((first, index + 1))
    if depth:
        raise PieceError(f"the optional piece {argv[first]} … is not closed by ]")
    return pieces


def expand(argv: Sequence[str], params: Mapping[str, Scalar], run_dir: str, checkpoint: str | None) -> tuple[str, ...]:
    """A command line's words with placeholders and optional pieces resolved.

    An optional piece is left out if a parameter in it is None or false. A word in it that is only a
    true parameter is dropped, so that ``[--amp {amp}]`` becomes the flag ``--amp``.
    """
    # A piece with the checkpoint or its step is there if the attempt resumes from one.
    decided: dict[str, Scalar] = {**params, "checkpoint": checkpoint, "checkpoint_step": checkpoint}
    remaining: list[str] = []
    end = 0
    for first, after in find_pieces(argv):
        remaining += argv[end:first]
        remaining += _words_of_piece(argv[first:after], decided)
        end = after
    remaining += argv[end:]
    values = values_for(params, run_dir, checkpoint)
    return tuple(substitute(word, values) for word in remaining)


def _words_of_piece(piece: Sequence[str], decided: Mapping[str, Scalar]) -> list[str]:
    """The words of an optional piece without its brackets; none if it is left out.

    Args:
        decided: the parameters that decide about it.
    """
    content = list(piece)
    content[0] = content[0].removeprefix("[")
    content[-1] = content[-1].removesuffix("]")
    names = [name for word in content for name in PLACEHOLDER.findall(word)]
    if any(name in decided and (decided[name] is None or decided[name] is False) for name in names):
        return []
    flags = {f"{{{name}}}" for name in names if decided.get(name) is True}
    return [word for word in content if word not in flags]


def values_for(params: Mapping[str, Scalar], run_dir: str, checkpoint: str | None) -> dict[str, str]:
    """The values of placeholders, by name."""
    step = None if checkpoint is None else step_in_name(PurePath(checkpoint))
    return {
        **{k: format_value(v) for k, v in params.items()},
        "run_dir": run_dir,
        "checkpoint": checkpoint or "",
        "checkpoint_step": "" if step is None else str(step),
    }


def as_typed(params: Mapping[str, Scalar], spellings: Mapping[str, str]) -> Mapping[str, Scalar]:
    """The parameters with the typed text of those that still have the typed number."""
    typed: dict[str, Scalar] = {}
    for name, text in spellings.items():
        value = params.get(name)
        if is_number(value) and float(text) == value:
            typed[name] = text
    return {**params, **typed}


def build_launch(
    spec: RunSpec,
    *,
    run_dir: str,
    attempt: int,
    params: Mapping[str, Scalar],
    placement: Placement,
    checkpoint: str | None,
) -> Launch:
    """The command of one attempt.

    Args:
        run_dir: the run's folder, whose name is the run's id.
        placement: its GPUs are UUIDs or indices, as the profile requires.
        checkpoint: the path to resume from.

    Raises:
        ValueError: the script resumes by a step that the checkpoint's name does not have.
    """
    run_id = PurePath(run_dir).name
    typed = as_typed(params, spec.spellings)
    values = values_for(typed, run_dir, checkpoint)
    node_dir = str(PurePath(run_dir) / "attempts" / str(attempt) / NODES / str(placement.number))
    command = _command_words(spec, typed, values, run_dir, checkpoint)
    invocation = Invocation(command, node_dir, f"{run_id}.{attempt}")
    launcher = LAUNCHERS[spec.launcher]
    env = {
        **_common_environment(spec, node_dir),
        "CUDA_VISIBLE_DEVICES": ",".join(placement.nodes[0].gpus),
        "GPUTUI_RUN_ID": run_id,
        "GPUTUI_RUN_DIR": run_dir,
        "GPUTUI_ATTEMPT": str(attempt),
        "GPUTUI_METRICS": _metrics_path(spec, values, run_dir),
        **launcher.environment(placement, invocation),
    }
    if checkpoint is not None:
        env["GPUTUI_CHECKPOINT"] = checkpoint
    env |= {name: substitute(text, values) for name, text in spec.env.items()}
    argv = launcher.argv(spec, placement, invocation)
    workdir = substitute(spec.workdir, values)
    return Launch(argv, env, workdir, spec.grace_seconds + SHIM_MARGIN_SECONDS)


def _command_words(
    spec: RunSpec, params: Mapping[str, Scalar], values: Mapping[str, str], run_dir: str, checkpoint: str | None
) -> tuple[str, ...]:
    """The program and its arguments, those for resuming last. Raises ValueError as `build_launch`."""
    resume: tuple[str, ...] = ()
    if checkpoint is not None and spec.checkpoints is not None:
        resume = tuple(spec.checkpoints.resume)
    if checkpoint is not None and not values["checkpoint_step"]:
        _check_needs_no_step(checkpoint, (*spec.program, *(spec.args or ()), *spec.env.values(), *resume))
    program = expand(spec.program, params, run_dir, checkpoint)
    if spec.args is None:
        arguments = flag_tokens(params)
    else:
        arguments = expand(spec.args, params, run_dir, checkpoint)
    return (*program, *arguments, *(substitute(token, values) for token in resume))


def _metrics_path(spec: RunSpec, values: Mapping[str, str], run_dir: str) -> str:
    """The file that a script should write its metrics to: the first JSONL file of the profile, else gputui's own."""
    for source in spec.metrics:
        if source.kind == "jsonl" and source.path:
            return substitute(source.path, values)
    return f"{run_dir}/{METRICS_FILE}"


def _check_needs_no_step(checkpoint: str, templates: Iterable[str]) -> None:
    """Raise ValueError if a template has the step of a checkpoint whose name does not tell it."""
    if any("{checkpoint_step}" in template for template in templates):
        name = PurePath(checkpoint).name
        raise ValueError(f"{name} names no step for {{checkpoint_step}}; resume by {{checkpoint}}, or restart the run")


def _common_environment(spec: RunSpec, node_dir: str) -> dict[str, str]:
    """The variables that are the same for every attempt on a node."""
    return {
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "OMP_NUM_THREADS": "1",
        "TORCHELASTIC_ERROR_FILE": f"{node_dir}/error.json",
        # A variable and not torchrun's option: torch before 2.12 refuses the option, and accelerate
        # has none.
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(1, round(spec.grace_seconds))),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GPUTUI_GRACE": f"{spec.grace_seconds:g}",
    }


def without_gpus(launch: Launch) -> Launch:
    """The launch for a target whose own scheduler assigns the GPUs."""
    chosen_there = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    return replace(launch, env={name: value for name, value in launch.env.items() if name not in chosen_there})


def checkpoint_directory(spec: RunSpec, run_dir: Path) -> Path | None:
    """The folder of the run's checkpoints, or None if its profile names none."""
    if spec.checkpoints is None:
        return None
    return in_run(spec.checkpoints.directory, spec, run_dir)


def checkpoint_location(spec: RunSpec) -> tuple[str, str]:
    """The folder, with its placeholders, and the pattern of the checkpoints that a run saves.

    Where the profile names none, they are recognised below the working directory.
    """
    if spec.checkpoints is None:
        return spec.workdir, LEARNED
    return spec.checkpoints.directory, spec.checkpoints.pattern


def watched_checkpoints(spec: RunSpec, run_dir: Path) -> tuple[Path, str]:
    """`checkpoint_location` with the folder of this run."""
    folder, pattern = checkpoint_location(spec)
    return in_run(folder, spec, run_dir), pattern


def in_run(text: str, spec: RunSpec, run_dir: Path) -> Path:
    """A path of the profile with placeholders filled in, in the working directory if relative."""
    path = Path(substitute(text, values_for(spec.params, str(run_dir), checkpoint=None)))
    if path.is_absolute():
        return path
    return Path(spec.workdir) / path


def sink_target(template: str, params: Mapping[str, Scalar], *, run_id: str, run_dir: str) -> str:
    """The target of a profile's sink for one run."""
    return substitute(template, {**values_for(params, run_dir, checkpoint=None), "run_id": run_id})


def sinks_of(run: Run, run_dir: Path) -> dict[str, str]:
    """The target of each sink of a stored run, by name, secrets redacted."""
    spec = known_spec(run)
    if spec is None:
        return {}
    return {
        name: sink_target(template, spec.params, run_id=run.run_id, run_dir=str(run_dir))
        for name, template in spec.sinks.items()
    }
