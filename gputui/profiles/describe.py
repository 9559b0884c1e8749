"""Describe a launch for ``check``, ``run --dry-run`` and the launch page, without secrets."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from gputui.core.redaction import Redactor
from gputui.core.text import clean
from gputui.core.units import bytes_text, count_of, duration
from gputui.machine.gpu_model import GpuFacts
from gputui.profiles.gpu_checks import GpuSituation, likely_gpus
from gputui.profiles.sink_checks import shown_sinks
from gputui.runs.command import Launch, build_launch, substitute, values_for, without_gpus
from gputui.runs.executors import Executors
from gputui.runs.launchers.base import Placement
from gputui.runs.learned_checkpoints import LEARNED
from gputui.runs.redaction import redact_launch, redact_spec, secrets_of
from gputui.runs.spec import RunSpec

RUN_ID = "RUN"
"""A placeholder for the run's id, which is assigned at the launch."""


def target_preview(spec: RunSpec, runs: Path) -> list[str]:
    """What a run's target would get, without secrets, as lines."""
    launch = redact_launch(without_gpus(preview_launch(spec, runs=runs)), Redactor(secrets_of(spec)))
    return [clean(line) for line in Executors().of(spec.target).preview(spec, launch).splitlines()]


def preview_launch(spec: RunSpec, *, runs: Path, gpus: Sequence[GpuFacts] = ()) -> Launch:
    """The first attempt's command if it got ``gpus`` now; port 0 stands for a free one."""
    uuids = tuple(gpu.uuid for gpu in gpus) or spec.gpus.uuids
    visible = uuids if spec.visible == "uuid" else tuple(str(gpu.index) for gpu in gpus)
    if spec.target is None:
        placement = Placement.here(visible, spec.nproc, port=0)
    else:
        placement = Executors().of(spec.target).placement(spec)
    return build_launch(
        spec,
        run_dir=str(runs / RUN_ID),
        attempt=1,
        params=spec.params,
        placement=placement,
        checkpoint=None,
    )


def command_line(spec: RunSpec, launch: Launch) -> str:
    """The attempt's command, ready to paste, without secrets."""
    return clean(shlex.join(redact_launch(launch, Redactor(secrets_of(spec))).argv))


def describe(spec: RunSpec, launch: Launch, situation: GpuSituation | None = None) -> list[str]:
    """Lines for a person; ``situation`` are the machine's GPUs, if they can be asked."""
    launch = redact_launch(launch, Redactor(secrets_of(spec)))
    spec = redact_spec(spec)
    run_dir = launch.env["GPUTUI_RUN_DIR"]
    values = values_for(spec.params, run_dir, checkpoint=None)
    count = spec.gpus.count
    environment = dict(sorted(launch.env.items()))
    for name, value in environment.items():
        if value:
            environment[name] = shlex.quote(value)
        elif name == "CUDA_VISIBLE_DEVICES":
            environment[name] = f"<the {count_of(count, 'GPU')} it gets>" if count else "<no GPU>"
    time_limit = []
    if spec.time_limit_seconds is not None:
        time_limit.append(duration(spec.time_limit_seconds))
    source = f"profile      {spec.profile_path or spec.name}"
    if spec.typed:
        source = f"typed        {shlex.join(spec.typed)}"
    lines = [
        source,
        f"command      {shlex.join(launch.argv)}",
        f"in           {launch.cwd}",
        f"GPUs         {_gpus(spec, situation)}{spec.gpus.origin_words}",
        f"processes    {spec.nproc}" + f", with all {count} GPUs" * (spec.nproc == 1 < count),
        *_labelled("metrics", [substitute(text, values) for text in _metrics(spec)]),
        f"checkpoints  {_checkpoints(spec, values)}",
        *_labelled("sinks", shown_sinks(spec, run_id=RUN_ID, run_dir=run_dir)),
        f"recovery     {spec.recovery.get('policy', 'standard')}",
        *_labelled("time limit", time_limit),
        f"stop         SIGTERM, then SIGKILL after {launch.grace_seconds:g} s",
        *_labelled("environment", [f"{name}={value}" for name, value in environment.items()]),
    ]
    return [clean(line) for line in lines]


def _labelled(label: str, texts: Sequence[str]) -> list[str]:
    lines = []
    for text in texts:
        lines.append(f"{label:13}{text}")
        label = ""  # only the first line has it
    return lines


def _gpus(spec: RunSpec, situation: GpuSituation | None) -> str:
    """The GPUs that the run gets now, or those that it asks for."""
    request = spec.gpus
    if not request.count:
        return "none, on the CPU"
    memory = f", each with {bytes_text(request.memory_bytes)} free" if request.memory_bytes is not None else ""
    if situation is not None:
        chosen = likely_gpus(spec, situation)
        if len(chosen) == request.count:
            return ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in chosen) + memory
    requested = ", ".join(request.uuids) if request.uuids else f"any {request.count}"
    if request.share < 1:
        requested = f"{request.share:g} of one"
    if situation is None:
        return f"{requested}{memory}"
    return f"{requested}{memory}; waits until they are free"


def _metrics(spec: RunSpec) -> list[str]:
    if not spec.metrics:
        return ["off"]
    sources = []
    for source in spec.metrics:
        if source.kind == "auto":
            sources.append("learned from what it prints and writes")
        elif source.path is not None:
            sources.append(f"{source.kind} from {source.path}")
        else:
            patterns = count_of(len(source.patterns), "pattern")
            stream = {"stdout": "its output", "stderr": "its error output"}.get(source.kind, "all that it prints")
            sources.append(f"from {stream}, by {patterns}")
    return sources


def _checkpoints(spec: RunSpec, values: Mapping[str, str]) -> str:
    """The lines about checkpoints: their folder, and the arguments of a resume."""
    if spec.checkpoints is None:
        return "what it writes is seen; a new attempt begins from the start"
    resume = shlex.join(spec.checkpoints.resume)
    how = f"resumed with {resume}" if resume else "a new attempt finds its path in $GPUTUI_CHECKPOINT"
    folder = substitute(spec.checkpoints.directory, values)
    if spec.checkpoints.pattern == LEARNED:
        return f"found below {folder} by their content, {how}"
    return f"{folder}/{spec.checkpoints.pattern}, {how}"
