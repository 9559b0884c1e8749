"""Draft a commented profile for a script or command that already trains. Reads its files; runs and
imports nothing. ``gputui init train.py`` may give, without its comments:

    name: project-train
    launcher: torchrun
    script: train.py
    workdir: .
    gpus: 2
    params:
      lr: 0.1
    args: --lr {lr} --out {run_dir}/out
    metrics: auto
    checkpoints:
      dir: '{run_dir}/out'
      resume: --resume {checkpoint}
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gputui.core.units import count_of
from gputui.metrics.log_trial import Trial
from gputui.metrics.source_report import learned_forms
from gputui.profiles.init.command_profile import command_keys, run_name
from gputui.profiles.init.draft_arguments import DraftArguments, option_words
from gputui.profiles.init.draft_subject import DraftSubject, examine
from gputui.profiles.init.presets import Preset
from gputui.profiles.init.resume_form import resume_form
from gputui.profiles.init.script_options import Option
from gputui.profiles.init.typed_command import split_command
from gputui.profiles.params import RESERVED_NAMES, RUN_DIR, UNDECIDED
from gputui.profiles.profile_text import form_remarks, profile_text
from gputui.runs.launchers import FOR_SCRIPT

MAX_NAMED = 12
"""Options that a draft names as left at the script's defaults."""
LEARNED_METRICS = (
    "its metrics are learned in the first run: gputui run it, then gputui profile save RUN writes them down"
)

_OUT = f"{RUN_DIR}/out"
_OUTPUT_OPTIONS = (
    "output_dir", "out_dir", "save_dir", "ckpt_dir", "checkpoint_dir", "default_root_dir", "output", "out", "outdir",
    "logdir", "log_dir", "results_dir", "project_dir", "save_path", "work_dir",
)  # fmt: skip
# An option for a file that the script saves, and loads if it exists.
_CHECKPOINT_FILE = re.compile(r"[\w./-]*\w\.(?:pt|pth|ckpt|safetensors|bin|h5|keras|npz|pkl)(?:\.tar)?")
_SAVED_FILE = re.compile(r"^(?!.*(?:load|resume|init|pretrain)).*(?:snapshot|checkpoint|ckpt|save)", re.IGNORECASE)


@dataclass(slots=True)
class Draft:
    """A drafted profile: its keys, and comments by key.

    Attributes:
        findings: a line for each thing that was recognised, for the person.
        open_points: a line for each that a person has to decide or the first run to show.
        undeclared: typed options that are hardly the script's, as far as it could be read.
        options: all options that the script takes; none if there may be others.
    """

    name: str
    keys: dict[str, Any] = field(default_factory=dict)
    remarks: dict[str, list[str]] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    open_points: list[str] = field(default_factory=list)
    undeclared: Sequence[str] = ()
    options: Sequence[str] = ()

    @property
    def text(self) -> str:
        """The profile as a file."""
        title = f"{self.name}, drafted by gputui init. gputui check shows what it starts; gputui help recipes has more."
        return profile_text(title, self.keys, self.remarks)


def draft(
    command_line: Sequence[str],
    folder: Path,
    *,
    preset: Preset | None = None,
    gpus: int = 0,
    trial: Trial | None = None,
) -> Draft:
    """Draft a profile.

    Args:
        command_line: a script's path alone, or the command that trains.
        folder: where the profile will lie, and where relative paths of the command begin.
        preset: the script's framework, if it cannot be recognised.
        gpus: the number of GPUs of the machine.
        trial: what was learned of an old log.

    Raises DraftError, and SurveyError if the script cannot be read.
    """
    command = split_command(command_line, folder)
    subject = examine(command, folder, preset)
    if command_line[0] == command.script and not subject.is_distributed:
        command.launcher = FOR_SCRIPT
    if subject.survey.style == "lightning" and len(command_line) == 1:
        command.arguments.append("fit")
    beside = (name for name in (".venv/bin/python", "venv/bin/python") if (folder / name).exists())
    command.python = command.python or next(beside, None)
    profile = Draft(run_name(command, folder))
    if preset is not None:
        profile.findings.append(f"built on {preset.title}, as given")
    elif subject.preset is not None:
        profile.findings.append(f"built on {subject.preset.title}")
    if subject.survey.style is not None and subject.survey.options:
        profile.findings.append(f"{count_of(len(subject.survey.options), 'option')} ({subject.survey.style})")
    arguments = DraftArguments(subject)
    if subject.survey.is_certain or subject.survey.style is None:
        profile.undeclared = arguments.undeclared
    if subject.survey.has_all_options:
        profile.options = [flag for option in subject.options.values() for flag in option.flags]
    outputs = _complete(arguments, profile)
    profile.keys = {"name": profile.name, **command_keys(arguments, _processes(subject, gpus))}
    _add_remarks(profile, arguments)
    _add_metrics(profile, subject, trial)
    _add_checkpoints(profile, arguments, outputs)
    return profile


def _complete(arguments: DraftArguments, profile: Draft) -> list[str]:
    """Add the options that each run needs a value of its own for, and those that the script requires. Returns the
    places of the outputs."""
    places: list[str] = []
    unchanged: list[str] = []
    behind: list[str] = []
    if "--" in arguments.args:  # behind which nothing is an option
        end = arguments.args.index("--")
        arguments.args, behind = arguments.args[:end], arguments.args[end:]
    for option in arguments.untyped:
        if option.name in arguments.params:
            continue
        if _is_output(option):
            places.append(_output_place(option))
            separator = arguments.subject.separator_of(option)
            arguments.args += option_words(option.flag, separator, places[-1])
        elif option.is_required and option.name not in RESERVED_NAMES:
            arguments.add_option(option, UNDECIDED)
            flag = option.flag or option.name
            profile.open_points.append(f"the script requires {flag}: give it as params: {option.name}")
        elif option.flag and option is not arguments.resume and option.name in arguments.subject.survey.options:
            unchanged.append(option.flag)
    arguments.args += behind
    if unchanged:
        remark = f"with the script's own defaults: {' '.join(unchanged[:MAX_NAMED])}"
        if len(unchanged) > MAX_NAMED:
            remark += f" and {len(unchanged) - MAX_NAMED} more"
        profile.remarks["args"] = [remark]
    return places


def _is_output(option: Option) -> bool:
    """Return whether an option says where the script writes, so that two runs with its default would overwrite."""
    if option.name.lower() in _OUTPUT_OPTIONS:
        return not option.is_flag
    return _CHECKPOINT_FILE.fullmatch(str(option.default)) is not None and _SAVED_FILE.search(option.name) is not None


def _output_place(option: Option) -> str:
    """The place in a run's folder for a default output; a file's is the folder itself, since nothing creates one below
    it."""
    file = str(option.default).rpartition("/")[2]
    if re.search(r"\w\.[A-Za-z]\w{0,11}$", file):
        return f"{RUN_DIR}/{file}"
    return _OUT


def _processes(subject: DraftSubject, gpus: int) -> dict[str, int]:
    """The keys for GPUs and ranks, on a machine with so many GPUs."""
    command = subject.command
    if not command.launcher.starts_ranks:
        return {"gpus": min(gpus, 1)}
    if gpus or not command.nproc:
        return {"gpus": min(gpus, command.nproc or gpus)}
    return {"gpus": 0, "nproc": command.nproc}


def _add_remarks(profile: Draft, arguments: DraftArguments) -> None:
    """Add remarks on keys that a person may want to add."""
    keys = profile.keys
    remarks = profile.remarks
    for key in ("script", "module"):
        if key in keys and "python" not in keys:
            remarks[key] = ["python: .venv/bin/python    # the training environment's; else the active one"]
    if keys["gpus"] == 0:
        remarks["gpus"] = ["gpus: 0 is for processes on the CPU"]
        if arguments.subject.command.launcher.starts_ranks and "nproc" not in keys:
            remarks["gpus"].append("nproc: 2                    # ranks on the CPU; one without this line")
    if not any(meaning.role == "batch_size" for meaning in arguments.meanings.values()):
        remarks["roles"] = ["no batch size was found that recovery could lower: roles: {batch_size: its_name}"]


def _add_metrics(profile: Draft, subject: DraftSubject, trial: Trial | None) -> None:
    """Add ``metrics``, and what was learned of an old log."""
    if "GPUTUI_METRICS" in subject.survey.text:
        profile.findings.append("metrics lines written to $GPUTUI_METRICS")
        profile.keys["metrics"] = {"source": "jsonl"}
        return
    profile.keys["metrics"] = "auto"
    remarks = ["auto: learned from what it prints and writes"]
    if trial is None:
        profile.open_points.append(LEARNED_METRICS)
    elif not trial.points:
        profile.open_points.append("nothing in the log looks like metrics")
    else:
        names = [name for name in trial.points if name not in ("epoch", "total_steps")]
        lines = f"{trial.accepted} of {count_of(trial.lines, 'line')} of the log"
        profile.findings.append(f"{lines} are metrics: {', '.join(names)}")
        remarks += [remark for form in learned_forms(trial.learned) for remark in form_remarks(form)]
    profile.remarks["metrics"] = remarks


def _add_checkpoints(profile: Draft, arguments: DraftArguments, outputs: Sequence[str]) -> None:
    """Add the folder of ``checkpoints``, and a remark on how the script resumes."""
    form = resume_form(arguments.subject, arguments.resume)
    profile.keys.pop("checkpoints", None)  # they come last
    if not form.is_known:
        profile.open_points.append("the script has no option to resume: a new attempt would begin from the start")
        profile.remarks["checkpoints"] = [
            f"Checkpoints are found by their content, but a new attempt would begin from the start: {form.remark}",
            'checkpoints: {resume: "--resume {checkpoint}"}',
        ]
        profile.keys["checkpoints"] = None
        return
    folder = "."
    if outputs:
        folder = RUN_DIR
    if _OUT in outputs:
        folder = _OUT
    profile.keys["checkpoints"] = {"dir": folder}
    if form.arguments:
        profile.keys["checkpoints"]["resume"] = list(form.arguments)
    profile.remarks["checkpoints"] = ["checkpoints are found by their content"]
    if form.remark:
        profile.remarks["checkpoints"].append(form.remark)
