"""The parameters and arguments of a drafted profile, from typed words and a script's options."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping

from msgspec import Struct

from gputui.profiles.init.draft_subject import DraftNotes, DraftSubject
from gputui.profiles.init.script_survey import Option
from gputui.profiles.init.typed_command import as_number
from gputui.profiles.params import RESERVED_NAMES, UNDECIDED
from gputui.runs.spec import ROLE_NAMES, Scalar

OUT = "{run_dir}/out"
"""The output folder of a drafted run."""

# Names of recovery's parameters in other people's scripts, beside ROLE_NAMES.
_ROLE_ALIASES: Mapping[str, tuple[str, ...]] = {
    "batch_size": (
        "per_device_train_batch_size", "device_batch_size", "train_batch_size", "micro_batch_size", "micro_bs",
        "batch", "bs",
    ),
    "grad_accum": ("grad_accum_steps", "accumulate_grad_batches", "accum_steps", "accum", "gradient_accumulation"),
    "gradient_checkpointing": ("grad_checkpointing", "activation_checkpointing"),
    "lr": ("base_lr",),
    "grad_clip": ("clip_grad", "gradient_clip_val", "clip"),
    "num_workers": ("workers", "dataloader_num_workers"),
    "timeout": ("ddp_timeout",),
}  # fmt: skip
_OUTPUT_OPTIONS = (
    "output_dir", "out_dir", "save_dir", "ckpt_dir", "checkpoint_dir", "default_root_dir", "output", "out", "outdir",
    "logdir", "log_dir", "results_dir", "project_dir", "save_path", "work_dir",
)  # fmt: skip
# Options worth a parameter besides those of recovery: the length of the training, since a person
# changes it first, and the Trainer's intervals, since its metrics can be read only when it saves.
_LENGTH = re.compile(
    r"(?:(?:max|num|n|total|train|training)_?)+(?:step|iter|iteration|epoch|update)s?"
    r"|steps|iters|iterations|epochs|updates",
    re.IGNORECASE,
)
_HF_INTERVALS = ("save_steps", "logging_steps")
# An option for a file that the script saves, and loads if it exists.
_SAVED_FILE = re.compile(r"^(?!.*(?:load|resume|init|pretrain)).*(?:snapshot|checkpoint|ckpt|save)", re.IGNORECASE)


class _TypedOption(Struct, frozen=True):
    """A typed option. ``value`` is None for one that takes none."""

    flag: str
    name: str
    value: str | None
    separator: str = " "


class DraftArguments:
    """Arguments with placeholders, and the parameters that fill them: ``--lr 0.1`` becomes ``--lr {lr}`` with the
    parameter lr.

    Attributes:
        params: parameter → default.
        roles: role of recovery → parameter, if recovery would not know the parameter by its name.
        args: the arguments, as words that `shlex.split` can read.
        out_options: options that name the output folder → ``OUT``.
        left: options that keep the script's own default.
    """

    def __init__(self, subject: DraftSubject, notes: DraftNotes) -> None:
        self.subject = subject
        self.notes = notes
        self.params: dict[str, Scalar] = {}
        self.roles: dict[str, str] = {}
        self.args: list[str] = []
        self.out_options: dict[str, str] = {}
        self.left: list[str] = []

    def read(self) -> None:
        """Take typed words, numbers as parameters; add options that recovery or a person changes."""
        typed = self._add_typed()
        for name, option in self.subject.options.items():
            if name not in typed:
                self._add_untyped(name, option)

    def _add_typed(self) -> set[str]:
        """Returns the names of the typed options."""
        command, options = self.subject.command, self.subject.options
        words = deque(command.words)
        if self.subject.survey.style == "lightning" and not command.program and command.words[:1] != ["fit"]:
            words.appendleft("fit")
        typed: set[str] = set()
        positional = deque(option.name for option in options.values() if not option.flag)
        while words:
            found = _next_typed(words, self.subject)
            if isinstance(found, _TypedOption):
                typed.add(found.name)
                self._add_option(found)
            elif found.startswith("-"):
                self.args.append(quote(found))
            else:
                name = positional.popleft() if positional else ""
                typed.add(name)
                self._add_positional(found, name)
        return typed

    def _add_option(self, typed: _TypedOption) -> None:
        flag, name, value, separator = typed.flag, typed.name, typed.value, typed.separator
        if value is None:
            self.params[name] = True
            self.args.append(f"[{flag} {{{name}}}]")
        elif name.lower() in _OUTPUT_OPTIONS:
            self._add_output(name, f"{flag}{separator}{OUT}")
            self.notes.found.append(f"{flag} {value} became {OUT}, a folder of each run's own")
        elif name in RESERVED_NAMES or re.fullmatch(r"[A-Za-z_]\w*", name) is None:
            self.args.append(f"{flag}{separator}{quote(value)}")
        elif (number := as_number(value)) is not None:
            self._add_param(name, number, argument_of(flag, separator, name))
        else:
            self.args.append(f"{flag}{separator}{quote(value)}")

    def _add_positional(self, word: str, name: str) -> None:
        """Add a typed word for the positional argument ``name``, "" if the script has none."""
        number = as_number(word)
        if name.lower() in _OUTPUT_OPTIONS:
            self._add_output(name, OUT)
            self.notes.found.append(f"{word} became {OUT}, a folder of each run's own")
        elif not name or number is None:
            self.args.append(quote(word))
        else:
            self.params[name] = number
            self.args.append(f"{{{name}}}")

    def _add_untyped(self, name: str, option: Option) -> None:
        flag, default = option.flag, option.default
        separator = self.subject.separator if flag else ""
        argument = argument_of(flag, separator, name)
        if self.subject.survey.named_files == {default} and _SAVED_FILE.search(name):
            self._add_output(name, f"{flag}{separator}{OUT}/{str(default).rpartition('/')[2]}")
        elif name.lower() in _OUTPUT_OPTIONS and not option.is_flag:
            self._add_output(name, f"{flag}{separator}{OUT}")
        elif option.is_required and name not in RESERVED_NAMES:
            self.params[name] = UNDECIDED
            self.args.append(argument)
            self.notes.open_points.append(f"the script requires {flag or name}: give it as params: {name}")
        elif not flag:
            # Without it the positional arguments behind it would move.
            self._add_param(name, default, argument)
        elif not option.is_known or not (role_of(name) or _LENGTH.fullmatch(name) or name in _HF_INTERVALS):
            self.left.append(flag)
        elif option.is_flag and default is not True:  # the flag of an option that is on turns it off
            self._add_param(name, default, f"[{argument}]")
        elif not option.is_flag and default is None:
            self._add_param(name, None, f"[{argument}]")
        elif not option.is_flag and not isinstance(default, str):
            self._add_param(name, default, argument)
        else:
            self.left.append(flag)

    def _add_output(self, name: str, argument: str) -> None:
        self.args.append(argument)
        self.out_options[name] = OUT

    def _add_param(self, name: str, default: Scalar, argument: str) -> None:
        self.params[name] = default
        self.args.append(argument)
        role = role_of(name)
        if role is None or role in self.roles or name in ROLE_NAMES[role]:
            return
        if not any(usual in self.params for usual in ROLE_NAMES[role]):
            self.roles[role] = name


def _next_typed(words: deque[str], subject: DraftSubject) -> _TypedOption | str:
    """Take from the front of ``words`` an option with its value, or else one word."""
    word = words.popleft()
    flag, equals, value = word.partition("=")
    option = subject.option_of(flag) if equals or word.startswith("-") else None
    if option is None and re.match(r"-\w\S", word):  # -b32
        short = subject.option_of(word[:2])
        if short is not None and not short.is_flag:
            return _TypedOption(word[:2], short.name, word[2:])
    name = re.sub(r"[-.]", "_", flag.lstrip("-+")) if option is None else option.name
    if option is not None and option.is_flag:
        return _TypedOption(flag, name, None)
    if equals:
        return _TypedOption(flag, name, value, "=")
    is_value_next = bool(words) and words[0] != "" and (words[0][0] != "-" or as_number(words[0]) is not None)
    return _TypedOption(flag, name, words.popleft()) if word.startswith("-") and is_value_next else word


def argument_of(flag: str, separator: str, name: str) -> str:
    """The argument for a parameter, such as ``--steps {steps}``; only the value without a flag."""
    return f"{flag}{separator}{{{name}}}" if flag else f"{{{name}}}"


def role_of(name: str) -> str | None:
    """The role that recovery gives to a parameter of this name."""
    for role, usual in ROLE_NAMES.items():
        if name.lower() in (*usual, *_ROLE_ALIASES.get(role, ())):
            return role
    return None


def quote(word: str) -> str:
    """Quote a word for `shlex.split`, but leave placeholders such as ``{lr}`` bare."""
    return word if re.fullmatch(r"[\w@%+=:,./{}-]+", word) else "'" + word.replace("'", "'\"'\"'") + "'"
