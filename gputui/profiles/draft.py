"""A profile's first draft, with comments, from a script or a command that trains already. Nothing is run or imported.

`draft` reads the script (`gputui.profiles.script_survey`), so it does I/O; the text that it returns is valid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from gputui.profiles.params import UNDECIDED
from gputui.profiles.printed_patterns import DraftPattern, patterns_of
from gputui.profiles.script_survey import Option, Survey, SurveyError, options_in, survey_script
from gputui.profiles.typed_command import (
    SHELLS,
    DraftError,
    TypedCommand,
    as_number,
    command_options,
    script_file,
    starting_text,
    take_apart,
)
from gputui.runs.command import format_value
from gputui.runs.launchers import FOR_RANKS, FOR_SCRIPT
from gputui.runs.spec import ROLE_NAMES, Scalar

Preset = Literal["hf", "lightning", "accelerate", "timm", "nanogpt", "makefile"]
PRESETS: tuple[Preset, ...] = get_args(Preset)

OUT = "{run_dir}/out"

# Names by which scripts call what recovery may change, beyond those that it knows itself.
_ROLE_ALIASES: Mapping[str, tuple[str, ...]] = {
    "batch_size": ("per_device_train_batch_size", "train_batch_size", "micro_batch_size", "micro_bs", "batch", "bs"),
    "grad_accum": ("grad_accum_steps", "accumulate_grad_batches", "accum_steps", "accum", "gradient_accumulation"),
    "gradient_checkpointing": ("grad_checkpointing", "activation_checkpointing"),
    "lr": ("base_lr",),
    "grad_clip": ("clip_grad", "gradient_clip_val", "clip"),
    "num_workers": ("workers", "dataloader_num_workers"),
    "timeout": ("ddp_timeout",),
}
_OUTPUT_OPTIONS = (
    "output_dir", "out_dir", "save_dir", "ckpt_dir", "checkpoint_dir", "default_root_dir", "output", "out", "outdir",
    "logdir", "log_dir", "results_dir", "project_dir", "save_path", "work_dir",
)  # fmt: skip
# How long it trains is what a person changes first.
_LENGTH = re.compile(
    r"(?:(?:max|num|n|total|train|training)_?)+(?:step|iter|iteration|epoch|update)s?"
    r"|steps|iters|iterations|epochs|updates",
    re.IGNORECASE,
)
# How often the Trainer saves is how often its metrics can be read.
_HF_INTERVALS = ("save_steps", "logging_steps")
# An option for the file that it saves, and loads where it is there.
_SAVED_FILE = re.compile(r"^(?!.*(?:load|resume|init|pretrain)).*(?:snapshot|checkpoint|ckpt|save)", re.IGNORECASE)
_RESUME_OPTIONS = ("resume", "resume_from_checkpoint", "resume_from", "ckpt_path", "load_checkpoint", "checkpoint")
_PARALLEL = ("init_process_group", "DistributedDataParallel", "DDP", "fully_shard", "FullyShardedDataParallel")


@dataclass(frozen=True, slots=True)
class Draft:
    """The text of a profile, its name, what was recognised (one line each), what is only usual for such a script, and
    what a person must still decide."""

    name: str
    text: str
    found: tuple[str, ...]
    guesses: tuple[str, ...]
    open_points: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _SavedAt:
    """A folder, "" where it is unknown, and a glob below it. ``is_guess``: the script does not show all of it."""

    folder: str
    pattern: str
    is_guess: bool = False


@dataclass(slots=True)
class _Lines:
    """The draft under way."""

    params: dict[str, Scalar] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    args: list[str] = field(default_factory=list)
    out_options: dict[str, str] = field(default_factory=dict)
    found: list[str] = field(default_factory=list)
    guesses: list[str] = field(default_factory=list)
    open_points: list[str] = field(default_factory=list)


def draft(words: Sequence[str], folder: Path, *, preset: Preset | None = None, gpus: int = 0) -> Draft:
    """Draft a profile that will lie in ``folder``.

    Args:
        words: a script's path alone, or the command that trains.
        folder: where the profile will lie and where relative paths of the command begin.
        preset: what the script is built on, where that cannot be seen.
        gpus: how many GPUs the machine has.

    Raises DraftError, and SurveyError where the script cannot be read.
    """
    command = take_apart(words, folder)
    survey = Survey()
    script = script_file(command, folder)
    if script is not None:
        survey = survey_script(script)
        if command.launcher.takes_command and command.script is None:
            # Its options are those of the file that starts it, not of what is typed.
            survey.options, survey.style = command_options(command, folder), None
            survey.text += starting_text(command, folder)
    chosen = preset or _recognised(survey, command)
    if chosen == "makefile" and not command.launcher.takes_command:
        raise DraftError("preset makefile goes with a command: gputui init --preset makefile -- make train")
    if len(words) == 1 and command.launcher is FOR_RANKS and not _is_parallel(survey, chosen):
        command.launcher = FOR_SCRIPT
    lines = _Lines()
    if chosen is not None:
        lines.found.append(f"built on {_TITLES[chosen]}" + ("" if preset is None else ", as given"))
    if survey.style is not None and survey.options:
        lines.found.append(f"{len(survey.options)} options ({survey.style})")
    _arguments(lines, survey, command, chosen)
    name = _name(command, folder)
    text = _text(name, lines, survey, command, chosen, gpus, folder)
    return Draft(name, text, tuple(lines.found), tuple(lines.guesses), tuple(lines.open_points))


_TITLES: Mapping[Preset, str] = {
    "hf": "the Hugging Face Trainer",
    "lightning": "Lightning",
    "accelerate": "accelerate",
    "timm": "timm",
    "nanogpt": "nanoGPT's way",
    "makefile": "make",
}


def _recognised(survey: Survey, command: TypedCommand) -> Preset | None:
    if command.program and Path(command.program[0]).name == "make":
        return "makefile"
    if survey.uses("lightning", "pytorch_lightning"):
        return "lightning"
    if survey.uses("timm") and (
        "CheckpointSaver" in survey.calls or ("create_model" in survey.calls and "resume" in survey.options)
    ):
        return "timm"
    if survey.style == "globals":
        return "nanogpt"
    if _has_hf_trainer(survey):
        return "hf"
    return "accelerate" if survey.uses("accelerate") else None


def _has_hf_trainer(survey: Survey) -> bool:
    """Its own, one built on it, or a script that keeps its files and options."""
    packages = ("transformers", "trl", "sentence_transformers", "optimum")
    names = survey.calls | survey.taken_from(*packages)
    if survey.uses(*packages) and any(name.endswith(("Trainer", "TrainingArguments")) for name in names):
        return True
    return "trainer_state.json" in survey.text and "per_device_train_batch_size" in survey.options


def _is_parallel(survey: Survey, preset: Preset | None) -> bool:
    """Whether the script makes ranks of what torchrun tells it."""
    if preset in ("hf", "accelerate", "timm", "nanogpt"):
        return True
    return preset != "lightning" and (
        bool(survey.calls & set(_PARALLEL))
        or re.search(r"LOCAL_RANK|WORLD_SIZE|['\"]RANK['\"]", survey.text) is not None
    )


# --- parameters and arguments ---------------------------------------------------------------------------------------


def _arguments(lines: _Lines, survey: Survey, command: TypedCommand, preset: Preset | None) -> None:
    """What was typed comes first, its numbers as parameters; then what recovery may change."""
    options = _known_options(survey, preset)
    words = list(command.words)
    if preset == "lightning" and survey.style == "lightning" and words[:1] != ["fit"] and not command.program:
        words.insert(0, "fit")
    typed: set[str] = set()
    places = [option for option in options.values() if not option.flag]
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        flag, equals, value = word.partition("=")
        name = flag.lstrip("-+").replace("-", "_").replace(".", "_")
        option = options.get(name)
        follows = words[position] if position < len(words) else ""
        if not equals and flag.startswith("-") and not (option is not None and option.is_flag):
            if follows and (not follows.startswith("-") or as_number(follows) is not None):
                value, position = follows, position + 1
            else:
                lines.args.append(_literal(word))
                continue
        elif not equals and not (option is not None and option.is_flag):
            place = places.pop(0) if places else None
            number = as_number(word)
            if place is not None:
                typed.add(place.name)
            if place is not None and place.name.lower() in _OUTPUT_OPTIONS:
                lines.args.append(OUT)
                lines.out_options[place.name] = OUT
                lines.found.append(f"{word} became {OUT}, a folder of each run's own")
            elif place is None or number is None:
                lines.args.append(_literal(word))
            else:
                lines.params[place.name] = number
                lines.args.append(f"{{{place.name}}}")
            continue
        typed.add(name)
        separator = "=" if equals else " "
        if option is not None and option.is_flag:
            lines.params[name] = True
            lines.args.append(f"[{flag} {{{name}}}]")
        elif name.lower() in _OUTPUT_OPTIONS:
            lines.args.append(f"{flag}{separator}{OUT}")
            lines.out_options[name] = OUT
            lines.found.append(f"{flag} {value} became {OUT}, a folder of each run's own")
        elif (number := as_number(value)) is not None and re.fullmatch(r"[A-Za-z_]\w*", name):
            lines.params[name] = number
            lines.args.append(f"{flag}{separator}{{{name}}}")
            _note_role(lines, name)
        else:
            lines.args.append(f"{flag}{separator}{_literal(value)}")
    for name, option in options.items():
        if name not in typed:
            _untyped(lines, survey, name, option, _separator(survey, preset) if option.flag else "")


def _separator(survey: Survey, preset: Preset | None) -> str:
    """The text between an option and its value."""
    return "=" if survey.style in ("globals", "config", "hydra") or preset == "makefile" else " "


def script_option(command: TypedCommand, folder: Path, name: str) -> tuple[Scalar, str] | None:
    """Default and argument of a parameter that would pass the script's option ``name``, as in ``--steps {steps}``; None
    where no such option is seen."""
    script = script_file(command, folder)
    try:
        survey = Survey() if script is None else survey_script(script)
    except SurveyError:
        return None
    if command.launcher.takes_command and command.script is None:
        survey.options, survey.style = command_options(command, folder), None
    preset = _recognised(survey, command)
    option = _known_options(survey, preset).get(name.replace("-", "_"))
    if option is None:
        return None
    word = f"{option.flag}{_separator(survey, preset) if option.flag else ''}{{{name}}}"
    return option.default, f"[{word}]" if option.is_flag or (option.default is None and option.flag) else word


def _known_options(survey: Survey, preset: Preset | None) -> dict[str, Option]:
    options = dict(survey.options)
    if preset == "hf" and survey.style == "hf":
        known: dict[str, Scalar] = {
            "output_dir": None, "num_train_epochs": 3.0, "max_steps": -1, "save_steps": 500, "logging_steps": 500,
            "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "learning_rate": 5e-5,
            "max_grad_norm": 1.0,
        }  # fmt: skip
        for name, default in known.items():
            options.setdefault(name, Option(f"--{name}", name, default))
    if preset == "lightning" and survey.style == "lightning":
        for name in ("default_root_dir", "max_epochs", "max_steps"):
            options[name] = Option(f"--trainer.{name}", name)
    return options


def _untyped(lines: _Lines, survey: Survey, name: str, option: Option, separator: str) -> None:
    if survey.named_files == {option.default} and _SAVED_FILE.search(name):
        lines.args.append(f"{option.flag}{separator}{OUT}/{str(option.default).rpartition('/')[2]}")
        lines.out_options[name] = OUT
        return
    if name.lower() in _OUTPUT_OPTIONS and not option.is_flag:
        lines.args.append(f"{option.flag}{separator}{OUT}")
        lines.out_options[name] = OUT
        return
    if option.is_required:
        lines.params[name] = UNDECIDED
        lines.args.append(f"{option.flag}{separator}{{{name}}}")
        lines.open_points.append(f"the script requires {option.flag or name}: give it as params: {name}")
        return
    if not option.flag:
        # Those behind it have their places by it.
        lines.params[name] = option.default
        lines.args.append(f"{{{name}}}")
        _note_role(lines, name)
        return
    if not option.is_known or not (_role_of(name) or _LENGTH.fullmatch(name) or name in _HF_INTERVALS):
        return
    if option.is_flag or option.default is None:
        if option.is_flag and option.default is True:
            return  # its flag takes it away
        lines.params[name] = option.default if option.is_flag else None
        lines.args.append(f"[{option.flag}{separator}{{{name}}}]")
    elif not isinstance(option.default, str):
        lines.params[name] = option.default
        lines.args.append(f"{option.flag}{separator}{{{name}}}")
    else:
        return
    _note_role(lines, name)


def _role_of(name: str) -> str | None:
    for role, usual in ROLE_NAMES.items():
        if name.lower() in (*usual, *_ROLE_ALIASES.get(role, ())):
            return role
    return None


def _note_role(lines: _Lines, name: str) -> None:
    """Say which parameter plays a role where recovery would not know it by its name."""
    role = _role_of(name)
    if role is None or role in lines.roles or any(other in lines.params for other in ROLE_NAMES[role] if other != name):
        return
    if name not in ROLE_NAMES[role]:
        lines.roles[role] = name


def _literal(word: str) -> str:
    """A word of a command line as `shlex.split` takes it back."""
    return word if re.fullmatch(r"[\w@%+=:,./{}-]+", word) else "'" + word.replace("'", "'\"'\"'") + "'"


# --- the text -------------------------------------------------------------------------------------------------------


def _text(
    name: str,
    lines: _Lines,
    survey: Survey,
    command: TypedCommand,
    preset: Preset | None,
    gpus: int,
    folder: Path,
) -> str:
    out: list[str] = [
        f"# {name}, drafted by gputui init. gputui check shows what it would start; docs/recipes.md has more.",
        f"name: {name}",
        f"launcher: {command.launcher.name}",
    ]
    if command.launcher.takes_command:
        out.append(f"command: {_quoted(_joined(command.program))}")
    elif command.module is not None:
        out.append(f"module: {command.module}")
    else:
        out.append(f"script: {_quoted(str(command.script))}")
    if not command.launcher.takes_command:
        if command.python is not None:
            out.append(f"python: {_quoted(command.python)}")
        else:
            out.append("# python: .venv/bin/python      # the training environment's; else the active one")
    if command.module is not None or command.launcher.takes_command or command.script is None or "/" in command.script:
        out.append("workdir: .")
    wanted = min(gpus, command.nproc or gpus) if command.launcher.starts_ranks else min(gpus, 1)
    out.append(f"gpus: {wanted}" + ("                         # 0: processes on the CPU" if not wanted else ""))
    if command.launcher.starts_ranks and not wanted and command.nproc:
        out.append(f"nproc: {command.nproc}")
    elif command.launcher.starts_ranks and not wanted:
        needed = ", which train one model only with --use_cpu" if preset == "hf" else ""
        out.append(f"# nproc: 2                    # ranks on the CPU{needed}; one without this line")
    if lines.params:
        out.append("params:")
        shared = [key for key in lines.params if key in survey.shared and _role_of(key) in ("batch_size", "grad_accum")]
        out += [
            f"  {key}: {{default: {_value(value)}, scope: global}}    # the script divides it among the ranks"
            if key in shared
            else f"  {key}: {_value(value)}"
            for key, value in lines.params.items()
        ]
    if lines.args:
        out.append("args: >-")
        out += [f"  {line}" for line in _wrapped(lines.args)]
    elif not command.launcher.takes_command:
        out.append('args: ""')
    if lines.roles:
        out.append("roles: {" + ", ".join(f"{role}: {param}" for role, param in lines.roles.items()) + "}")
    elif not any(_role_of(param) == "batch_size" for param in lines.params):
        out.append("# no batch size was found that recovery could lower: roles: {batch_size: its_name}")
    out += _metrics(lines, survey, preset)
    out += _checkpoints(lines, survey, command, preset, folder)
    return "\n".join(out) + "\n"


def _metrics(lines: _Lines, survey: Survey, preset: Preset | None) -> list[str]:
    if "GPUTUI_METRICS" in survey.text:
        lines.found.append("metrics lines written to $GPUTUI_METRICS")
        return ["metrics: {source: jsonl}"]
    sources: list[list[str]] = []
    out_dir = _output_directory(lines, survey)
    if preset == "hf":
        sources.append(
            ["source: hf", f'path: "{out_dir or "out"}/checkpoint-*/trainer_state.json"   # with each checkpoint']
        )
        lines.found.append("metrics in trainer_state.json")
    if preset == "lightning" and ("CSVLogger" in survey.calls or "metrics.csv" in survey.text):
        folder = survey.keywords.get("CSVLogger", {}).get("save_dir", "*").strip("*") or out_dir or "."
        sources.append(["source: csv", f'path: "{folder}/lightning_logs/version_*/metrics.csv"'])
    elif preset == "lightning":
        folder = out_dir or "."
        sources.append(
            ["source: tensorboard             # CSVLogger: {source: csv, path: …/metrics.csv}",
             f'path: "{folder}/lightning_logs/version_*"']
        )  # fmt: skip
    if "SummaryWriter" in survey.calls:
        words = survey.keywords.get("SummaryWriter", {})
        known = {**lines.out_options, "run_dir": "{run_dir}"}
        folder = options_in(words.get("log_dir", words.get("logdir", "runs/*")), known)
        sources.append(["source: tensorboard", f'path: "{folder}"'])
        lines.found.append(f"TensorBoard files in {folder}")
    drafts = patterns_of(survey.printed)
    ready = [each for each in drafts if each.steps in ("global", "in_epoch")]
    spare = [each for each in drafts if each not in ready]
    step: list[str] = []
    if not ready and drafts and all(each.steps == "epoch" for each in drafts):
        ready, spare, step = drafts, [], ["step: epoch"]
    if ready and preset != "hf":
        units = {name: unit for each in ready for name, unit in each.units.items()}
        block = ["source: output                 # stdout and stderr of the first rank", *step]
        if units:
            block.append("units: {" + ", ".join(f"{name}: {unit}" for name, unit in units.items()) + "}")
        patterns = [each.pattern for each in ready]
        if not any("(?P<loss>" in pattern for pattern in patterns):
            # Alerts and recovery watch the loss by this name.
            patterns = [pattern.replace("(?P<train_loss>", "(?P<loss>") for pattern in patterns]
        block += ["patterns:", *(f"  - {_single(pattern)}" for pattern in patterns)]
        block += _spares(spare)
        sources.append(block)
        lines.found.append(f"{len(ready)} printed line{'' if len(ready) == 1 else 's'} with metrics")
    if not sources:
        lines.open_points.append(
            "no metrics were found: --preset hf or another takes those of its framework; else give patterns of what it "
            "prints (docs/metrics.md)"
        )
        return [
            "# No metrics were found. What it prints can be searched (docs/metrics.md):",
            "# metrics: {source: output, patterns: ['step (?P<step>\\d+) loss (?P<loss>\\S+)']}",
            *_spares(spare),
            "metrics: off",
        ]
    if len(sources) == 1:
        return ["metrics:", *(f"  {line}" for line in sources[0])]
    shown = ["metrics:"]
    for source in sources:
        shown += [f"  - {source[0]}", *(f"    {line}" for line in source[1:])]
    return shown


def _spares(drafts: Sequence[DraftPattern]) -> list[str]:
    """Lines that have no step of the whole training."""
    words = {"unclear": "steps begin again with each epoch", "epoch": "has no step, only an epoch"}
    return [f"  # line {each.line}, {words[each.steps]}: {_single(each.pattern)}" for each in drafts]


def _output_directory(lines: _Lines, survey: Survey) -> str | None:
    """Where the script writes: its option for that, else what it says itself."""
    if lines.out_options:
        return OUT
    for call in ("TrainingArguments", "SFTConfig", "Seq2SeqTrainingArguments", "Trainer", "CSVLogger"):
        words = survey.keywords.get(call, {})
        for word in ("output_dir", "default_root_dir", "save_dir"):
            found = options_in(words.get(word, "*"), {**lines.out_options, "run_dir": "{run_dir}"})
            if "*" not in found and found:
                return found.rstrip("/")
    return None


def _checkpoints(
    lines: _Lines, survey: Survey, command: TypedCommand, preset: Preset | None, folder: Path
) -> list[str]:
    place = _saved_at(lines, survey, preset)
    if place is not None and not place.folder:
        lines.open_points.append(
            f"in which folder it saves {place.pattern} cannot be seen: write it as checkpoints: dir"
        )
        place = None
    resume, comment = _resume(lines, survey, preset)
    is_passed = re.search(r"--\S*resume", starting_text(command, folder)) is not None
    if is_passed:
        resume, comment = None, ["what it starts is given its own option to resume"]
    if place is None:
        lines.open_points.append("no checkpoints were found: a new attempt begins from the start")
        words = resume or "--resume {checkpoint}"
        return [
            "# No checkpoints were found; with them a new attempt would go on from the newest one:",
            f'# checkpoints: {{dir: "{{run_dir}}/checkpoints", pattern: "step_*.pt", resume: "{words}"}}',
        ]
    where = f"checkpoints {place.folder}/{place.pattern}"
    if place.is_guess:
        lines.guesses.append(f"{where}: a guess; gputui explain says after a run whether a file matched")
    else:
        lines.found.append(where)
    shown = ["checkpoints:", f"  dir: {_quoted(place.folder)}", f"  pattern: {_quoted(place.pattern)}"]
    if place.is_guess:
        shown[-1] += "     # a guess"
    if resume is not None:
        shown.append(f"  resume: {_quoted(resume)}")
    elif "GPUTUI_CHECKPOINT" not in survey.text and not is_passed and not _loads_what_is_there(survey):
        lines.open_points.append("the script has no option to resume: a new attempt would begin from the start")
    return shown + [f"  # {line}" for line in comment]


def _saved_at(lines: _Lines, survey: Survey, preset: Preset | None) -> _SavedAt | None:
    out_dir = _output_directory(lines, survey)
    if preset == "hf":
        return _SavedAt(out_dir or "out", "checkpoint-*", is_guess=out_dir is None)
    if preset == "timm":
        # Its saver writes this one again with each epoch; model_best.pth.tar beside it may be older.
        return _SavedAt(out_dir or "output", "**/last.pth.tar", is_guess=True)
    paths = [options_in(path, {**lines.out_options, "run_dir": "{run_dir}"}) for path in survey.saves]
    if preset == "lightning":
        paths = [path for path in paths if path.endswith(".ckpt") and not path.startswith("*")]
        if not paths or paths[0].startswith("lightning_logs"):
            return _SavedAt(out_dir or ".", "lightning_logs/version_*/checkpoints/*.ckpt", is_guess=out_dir is None)
    ranked = sorted(paths, key=lambda path: ("best" in path, "*" not in path.rpartition("/")[2]))
    for path in ranked:
        folder, _, pattern = path.rpartition("/")
        if not pattern.strip("*"):
            continue
        known, star, _ = folder.partition("*")
        if not star:
            return _SavedAt(folder or ".", pattern)
        # What is not known of the folder may be any number of folders.
        known = known.rpartition("/")[0] or out_dir or ""
        return _SavedAt(known, f"**/{pattern}", is_guess=True)
    if len(survey.named_files) == 1:
        (path,) = survey.named_files
        option = next((name for name, each in survey.options.items() if each.default == path), None)
        if option is not None and option in lines.out_options:
            return _SavedAt(OUT, path.rpartition("/")[2], is_guess=True)
        if out_dir is not None:
            return _SavedAt(out_dir, f"**/{path.rpartition('/')[2]}", is_guess=True)
        return _SavedAt(path.rpartition("/")[0] or ".", path.rpartition("/")[2], is_guess=True)
    return None


def _resume(lines: _Lines, survey: Survey, preset: Preset | None) -> tuple[str | None, list[str]]:
    """The arguments that resume, and what a person should know of it."""
    if "GPUTUI_CHECKPOINT" in survey.text:
        return None, ["resumed by $GPUTUI_CHECKPOINT, which the script reads"]
    if preset == "nanogpt":
        return "--init_from=resume", ["the script finds its own ckpt.pt"]
    if preset == "lightning" and survey.style == "lightning":
        return "--ckpt_path {checkpoint}", []
    if preset == "lightning" and not survey.options.keys() & set(_RESUME_OPTIONS):
        return None, ['one line makes it resume: trainer.fit(model, ckpt_path=os.environ.get("GPUTUI_CHECKPOINT"))']
    if preset == "hf" and survey.style == "hf" and "resume_from_checkpoint" in survey.text:
        return "--resume_from_checkpoint {checkpoint}", []
    separator = _separator(survey, preset)
    for name in _RESUME_OPTIONS:
        option = survey.options.get(name)
        if option is not None:
            word = option.flag if option.is_flag else f"{option.flag}{separator}{{checkpoint}}"
            return word, ["the script finds its newest checkpoint itself"] if option.is_flag else []
    if preset == "hf":
        return None, [
            'one line makes it resume: trainer.train(resume_from_checkpoint=os.environ.get("GPUTUI_CHECKPOINT"))'
        ]
    if _loads_what_is_there(survey):
        return None, ["the script seems to load its own checkpoint where that is there"]
    return None, ["the script would begin again; where it can, let it load os.environ.get('GPUTUI_CHECKPOINT')"]


def _loads_what_is_there(survey: Survey) -> bool:
    return "load" in survey.calls and bool(survey.calls & {"exists", "is_file", "isfile"})


def _name(command: TypedCommand, folder: Path) -> str:
    program = (
        command.program[-1:] if command.program[:1] and Path(command.program[0]).name in SHELLS else command.program
    )
    source = command.script or command.module or (program[0] if program else "")
    stem = source.rpartition(".")[2] if command.module else Path(source).stem
    if stem in ("train", "main", "run", "__main__", "make", "bash", "sh", "accelerate", "just"):
        stem = f"{folder.resolve().name}-{stem}" if folder.resolve().name else stem
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip("-._")[:64] or "training"


def _joined(words: Sequence[str]) -> str:
    return " ".join(map(_literal, words))


def _wrapped(args: Sequence[str]) -> list[str]:
    rows = [""]
    for word in args:
        if rows[-1] and len(rows[-1]) + len(word) > 96:
            rows.append("")
        rows[-1] = f"{rows[-1]} {word}".strip()
    return rows


def _value(value: Scalar) -> str:
    if value is None:
        return "null"
    return json.dumps(value) if isinstance(value, str) else format_value(value)


def _single(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _quoted(text: str) -> str:
    """Text as YAML takes it back, in quotes only where it needs them."""
    return text if re.fullmatch(r"[A-Za-z./][\w./ =-]*", text) and ": " not in text else json.dumps(text)
