"""What a launch would do, for ``gputui check``, ``run --dry-run`` and the launch page; secrets left out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from gputui.charts.safe_text import clean
from gputui.gpu.model import GpuFacts
from gputui.profiles.gpu_checks import GpuSituation, likely_gpus
from gputui.profiles.sink_checks import shown_sinks
from gputui.redaction import Redactor, redact_argv, redact_params
from gputui.runs.command import Launch, build_launch, substitute, values_for
from gputui.runs.executors import Executors
from gputui.runs.launchers.base import Placement
from gputui.runs.redaction import redact_launch, redact_spec, secrets_of
from gputui.runs.spec import RunSpec
from gputui.yaml_forms.quantities import format_size

RUN_ID = "RUN"
"""Stands for the run's id, which it gets when it is launched."""


def preview_launch(spec: RunSpec, *, runs: Path, gpus: Sequence[GpuFacts] = ()) -> Launch:
    """The first attempt's command as it would be now. ``runs`` is the folder of all runs; ``gpus`` those it would get.
    The run's id is `RUN_ID`, and port 0 means a free one."""
    uuids = tuple(gpu.uuid for gpu in gpus) or spec.gpus.uuids
    visible = uuids if spec.visible == "uuid" else tuple(str(gpu.index) for gpu in gpus)
    here = Placement.here(visible, spec.nproc, port=0)
    return build_launch(
        spec,
        run_id=RUN_ID,
        run_dir=str(runs / RUN_ID),
        attempt=1,
        params=spec.params,
        placement=here if spec.target is None else Executors().of(spec.target).placement(spec),
        checkpoint=None,
    )


def command_line(spec: RunSpec, launch: Launch) -> str:
    """The attempt's command as one could paste it, secrets taken out."""
    return clean(shlex.join(redact_launch(launch, Redactor(secrets_of(spec))).argv))


def describe(spec: RunSpec, launch: Launch, situation: GpuSituation | None = None) -> list[str]:
    """Lines for a person: the command as one could paste it, where it runs, on what, and with which environment."""
    shown = redact_launch(launch, Redactor(secrets_of(spec)))
    values = values_for(redact_params(spec.params), shown.env["GPUTUI_RUN_DIR"], None)
    sinks = shown_sinks(redact_spec(spec), run_id=RUN_ID, run_dir=shown.env["GPUTUI_RUN_DIR"])
    lines = [
        f"profile      {spec.profile_path or spec.name}",
        f"command      {command_line(spec, launch)}",
        f"in           {shown.cwd}",
        f"GPUs         {_gpus(spec, situation)}",
        f"processes    {spec.nproc}",
        *(
            f"{'metrics' if position == 0 else '':13}{substitute(text, values)}"
            for position, text in enumerate(_metrics(spec))
        ),
        f"checkpoints  {_checkpoints(spec, values)}",
        *(f"{'sinks' if position == 0 else '':13}{text}" for position, text in enumerate(sinks)),
        f"recovery     {spec.recovery.get('policy', 'standard')}",
        f"stop         SIGTERM, then SIGKILL after {launch.grace_seconds:g} s",
        *(
            f"{'environment' if position == 0 else '':13}{name}={shlex.quote(value) if value else ''}"
            for position, (name, value) in enumerate(sorted(shown.env.items()))
        ),
    ]
    return [clean(line) for line in lines]


def _gpus(spec: RunSpec, situation: GpuSituation | None) -> str:
    request = spec.gpus
    if not request.count:
        return "none, on the CPU"
    memory = f", each with {format_size(request.memory_bytes)} free" if request.memory_bytes is not None else ""
    if situation is not None:
        chosen = likely_gpus(request, situation)
        if len(chosen) == request.count:
            return ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in chosen) + memory
    wanted = ", ".join(request.uuids) if request.uuids else f"any {request.count}"
    return f"{wanted}{memory}" + ("; waits until they are free" if situation is not None else "")


def _metrics(spec: RunSpec) -> list[str]:
    if not spec.metrics:
        return ["off"]
    shown = []
    for source in spec.metrics:
        if source.path is not None:
            shown.append(f"{source.kind} from {source.path}")
        else:
            count = f"{len(source.patterns)} pattern{'' if len(source.patterns) == 1 else 's'}"
            where = {"stdout": "its output", "stderr": "its error output"}.get(source.kind, "all that it prints")
            shown.append(f"from {where}, by {count}")
    return shown


def _checkpoints(spec: RunSpec, values: Mapping[str, str]) -> str:
    if spec.checkpoints is None:
        return "none; a new attempt begins from the start"
    resume = shlex.join(redact_argv(spec.checkpoints.resume))
    how = f"resumed with {resume}" if resume else "a new attempt finds its path in $GPUTUI_CHECKPOINT"
    return f"{substitute(spec.checkpoints.directory, values)}/{spec.checkpoints.pattern}, {how}"
