"""The parameters and arguments of a drafted profile, from typed words and a script's options."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Sequence, Set

from msgspec import Struct
from msgspec.structs import replace

from gputui.profiles.init.draft_subject import DraftNotes, DraftSubject
from gputui.profiles.init.roles import NUMBER_ROLES, RESUME, Meaning, meaning_of
from gputui.profiles.init.script_options import Option
from gputui.profiles.init.typed_command import number_or_text
from gputui.profiles.params import MAX_INTEGER, NAME_PATTERN, RESERVED_NAMES, UNDECIDED
from gputui.runs.command import format_value
from gputui.runs.spec import ROLE_NAMES, Scalar, Scope

OUT = "{run_dir}/out"
"""The output folder of a drafted run."""

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
_CHECKPOINT_FILE = re.compile(r"[\w./-]*\w\.(?:pt|pth|ckpt|safetensors|bin|h5|keras|npz|pkl)(?:\.tar)?")
_SAVED_FILE = re.compile(r"^(?!.*(?:load|resume|init|pretrain)).*(?:snapshot|checkpoint|ckpt|save)", re.IGNORECASE)
# What a framework has by default, whatever trains with it.
_FRAMEWORK_ROLES = ("batch_size", "grad_accum")
_CONFIGURATION = re.compile(r".+\.(?:ya?ml|json|toml|cfg|ini|py)")


class _TypedOption(Struct, frozen=True):
    """A typed option as the parameter ``name``. ``value`` is None for one that takes none;
    ``option`` is None if the script's parser was not read."""

    flag: str
    name: str
    value: str | None
    separator: str = " "
    option: Option | None = None


class DraftArguments:
    """Arguments with placeholders, and the parameters that fill them: ``--lr 0.1`` becomes ``--lr {lr}`` with the
    parameter lr.

    Attributes:
        is_verbatim: the command line stays exactly as it was typed, and gets only options that the script has for
            certain; else outputs go to the run's folder, and what the script requires is added.
        params: parameter → default.
        meanings: parameter → what it is to recovery.
        args: groups of words; an option and its value are one.
        out_options: options that name the output folder → ``OUT``, or a file → its path.
        left: options that keep the script's own default.
        resume: the option that is given a checkpoint, None if the script shows none.
        undeclared: typed options that the parser, as far as it was read, does not have.
    """

    def __init__(self, subject: DraftSubject, notes: DraftNotes, *, is_verbatim: bool = False) -> None:
        self.subject = subject
        self.notes = notes
        self.is_verbatim = is_verbatim
        self.params: dict[str, Scalar] = {}
        self.meanings: dict[str, Meaning] = {}
        self.args: list[tuple[str, ...]] = []
        self.out_options: dict[str, str] = {}
        self.left: list[str] = []
        self.resume: Option | None = None
        self._resume_doubt: int | None = None
        self.undeclared: list[str] = []

    def read(self) -> None:
        """Take typed words as parameters; add options that recovery or a person changes."""
        typed = self._add_typed()
        options = self.subject.options
        typed_groups = {options[name].exclusive_group for name in typed if name in options} - {None}
        for name, option in options.items():
            meaning = _meaning(name, option)
            if name in typed or option.takes_many or option.exclusive_group in typed_groups:
                continue
            if meaning is not None and meaning.role == RESUME and (self._is_whole or not self.is_verbatim):
                self._note_resume(option, meaning)
            if not self.is_verbatim:
                self._add_untyped(name, option, meaning)
        if self.is_verbatim:
            self._offer(typed)

    def _note_resume(self, option: Option, meaning: Meaning) -> None:
        if self._resume_doubt is None or meaning.doubt < self._resume_doubt:
            self.resume, self._resume_doubt = option, meaning.doubt

    @property
    def _is_whole(self) -> bool:
        """True if the script's parser was read for certain. A typed option that it does not declare
        shows that there is more to it, as a group of hydra."""
        survey = self.subject.survey
        return survey.is_certain and (not self.undeclared or survey.style == "hf")

    @property
    def roles(self) -> dict[str, str]:
        """Role of recovery → parameter, where recovery would not know the parameter by its name."""
        roles: dict[str, str] = {}
        for role, usual in ROLE_NAMES.items():
            fit = [name for name, meaning in self.meanings.items() if meaning.role == role]
            fit.sort(key=lambda name: (self.params[name] is None, self.meanings[name].doubt))
            if fit and fit[0] not in usual:
                roles[role] = fit[0]
        return roles

    @property
    def scopes(self) -> dict[str, Scope]:
        """Parameters that count over all ranks, as their names or help say, or as the script divides them."""
        factors = {
            name: meaning for name, meaning in self.meanings.items() if meaning.role in ("batch_size", "grad_accum")
        }
        in_role = {*self.roles.values(), *ROLE_NAMES["batch_size"], *ROLE_NAMES["grad_accum"]}
        shared = self.subject.survey.shared
        return {
            name: "global"
            for name, meaning in factors.items()
            if name in in_role and (meaning.scope == "global" or name in shared)
        }

    def _add_typed(self) -> set[str]:
        """Returns the names of the typed options."""
        command, options = self.subject.command, self.subject.options
        words = deque(command.words)
        is_lightning = self.subject.survey.style == "lightning" and not command.program
        if is_lightning and not self.is_verbatim and command.words[:1] != ["fit"]:
            words.appendleft("fit")
        typed: set[str] = set()
        positional = deque(option for option in options.values() if not option.flag)
        while words:
            word = _next_typed(words, self.subject)
            if isinstance(word, _TypedOption):
                typed |= {word.name, word.option.name if word.option is not None else word.name}
                if word.option is None:
                    self.undeclared.append(word.flag)
                self._add_option(word)
                if word.option is not None and word.option.takes_many:
                    while words and not words[0].startswith("-"):
                        self.args.append((words.popleft(),))
            elif word == "--":
                self.args += [(word,), *((rest,) for rest in words)]
                break
            elif word.startswith("-") and number_or_text(word) == word:
                self.args.append((word,))
            else:
                option = positional.popleft() if positional and not positional[0].takes_many else None
                typed.add("" if option is None else option.name)
                self._add_positional(word, option)
        return typed

    def _add_option(self, typed: _TypedOption) -> None:
        flag, value, separator, option = typed.flag, typed.value, typed.separator, typed.option
        is_name = re.fullmatch(NAME_PATTERN, typed.name) is not None and typed.name not in RESERVED_NAMES
        words = (flag, value or "") if separator == " " else (f"{flag}{separator}{value}",)
        name = self._free_name(typed.name)
        meaning = _meaning(typed.name, option)
        if meaning is not None and meaning.role == RESUME and (option is not None or not meaning.doubt):
            self._note_resume(option or Option(flag, typed.name, is_flag=value is None), meaning)
        if not is_name:
            self.args.append((flag,) if value is None else words)
        elif value is None:
            self._add_param(name, True, _optional((flag, f"{{{name}}}")), option)
        elif typed.name.lower() in _OUTPUT_OPTIONS and not self.is_verbatim:
            place = _output_place(value)
            self._add_output(typed.name, option_words(flag, separator, place), place)
            self.notes.found.append(f"{flag} {value} became {place}, each run's own")
        else:
            self._add_param(name, self._typed_value(name, value, option), argument_of(flag, separator, name), option)

    def _free_name(self, name: str) -> str:
        """The name, with a number behind it if the command has it already."""
        number, free = 1, name
        while free in self.params:
            number += 1
            free = f"{name}_{number}"
        return free

    def _typed_value(self, name: str, text: str, option: Option | None) -> Scalar:
        """The value of a typed word: a number if the script or recovery takes it as one, or if it is
        spelled as gputui spells it, else the text: 12e4567 may be a commit."""
        number = number_or_text(text)
        if isinstance(number, str) or number in (math.inf, -math.inf):
            return text
        if isinstance(number, int) and abs(number) > MAX_INTEGER:
            return text
        meaning = _meaning(name, option)
        role = None if meaning is None else meaning.role
        if isinstance(number, int) and (role == "lr" or (option is not None and option.is_float)):
            return float(number)
        is_number = role in NUMBER_ROLES or (option is not None and option.is_number)
        return number if is_number or format_value(number) == text else text

    def _add_positional(self, word: str, option: Option | None) -> None:
        """Add a typed word for a positional argument, None if the script has none."""
        if option is None:
            self.args.append((word,))
        elif option.name.lower() in _OUTPUT_OPTIONS and not self.is_verbatim:
            place = _output_place(word)
            self._add_output(option.name, (place,), place)
            self.notes.found.append(f"{word} became {place}, each run's own")
        elif option.name in RESERVED_NAMES:
            self.args.append((word,))
        else:
            name = self._free_name(option.name)
            self._add_param(name, self._typed_value(name, word, option), (f"{{{name}}}",), option)

    def _offer(self, typed: Set[str]) -> None:
        """Add the option of each role that no typed one has, if its default is certain: the script's
        own, or that of a configuration file where the option has none, or that of the framework for every
        script. They come first, since not every word may stand behind the typed ones."""
        survey, taken = self.subject.survey, {meaning.role for meaning in self.meanings.values()}
        has_configuration = any(_CONFIGURATION.fullmatch(word) for word in self.subject.command.words)
        offers: dict[str, tuple[int, Option]] = {}
        for name, option in self.subject.options.items():
            if has_configuration:
                # What the file says, given as an option too, changes nothing.
                if option.default is not None or name not in self.subject.configured:
                    continue
                option = replace(option, default=self.subject.configured[name])
            meaning = _meaning(name, option)
            if meaning is None or meaning.role in (*taken, RESUME) or name in typed or option.takes_many:
                continue
            if option.exclusive_group is not None:
                # Another option of the group may be typed.
                continue
            is_number = isinstance(option.default, int | float) and not option.is_flag
            is_off = option.is_flag and option.default is False
            is_certain = self._is_whole if name in survey.options else meaning.role in _FRAMEWORK_ROLES
            is_better = meaning.doubt < offers[meaning.role][0] if meaning.role in offers else True
            if is_certain and option.is_known and option.flag and (is_number or is_off) and is_better:
                offers[meaning.role] = (meaning.doubt, option)
        words, self.args = self.args, []
        for _, option in offers.values():
            argument = argument_of(option.flag, self.subject.separator_of(option), option.name)
            if option.is_flag:
                argument = _optional(argument)
            self._add_param(option.name, option.default, argument, option)
        self.args += words

    def _add_untyped(self, name: str, option: Option, meaning: Meaning | None) -> None:
        flag, default = option.flag, option.default
        separator = self.subject.separator_of(option)
        argument = argument_of(flag, separator, name)
        is_role = meaning is not None and meaning.role != RESUME
        is_free = option.is_known and option.exclusive_group is None
        is_saved = _CHECKPOINT_FILE.fullmatch(str(default)) is not None and _SAVED_FILE.search(name) is not None
        if is_saved or (name.lower() in _OUTPUT_OPTIONS and not option.is_flag):
            place = _output_place(default)
            self._add_output(name, option_words(flag, separator, place), place)
        elif option.is_required and name not in RESERVED_NAMES:
            self.params[name] = UNDECIDED
            self.args.append(argument)
            self.notes.open_points.append(f"the script requires {flag or name}: give it as params: {name}")
        elif not flag:
            # Without it the positional arguments behind it would move.
            self._add_param(name, default, argument, option)
        elif not is_free or not (is_role or _LENGTH.fullmatch(name) or name in _HF_INTERVALS):
            self.left.append(flag)
        elif (option.is_flag and default is not True) or (not option.is_flag and default is None):
            # The flag of an option that is on turns it off.
            self._add_param(name, default, _optional(argument), option)
        elif not option.is_flag and not isinstance(default, str):
            self._add_param(name, default, argument, option)
        else:
            self.left.append(flag)

    def _add_output(self, name: str, argument: tuple[str, ...], place: str) -> None:
        self.args.append(argument)
        self.out_options[name] = place

    def _add_param(self, name: str, default: Scalar, argument: tuple[str, ...], option: Option | None) -> None:
        self.params[name] = default
        self.args.append(argument)
        meaning = _meaning(name, option)
        if meaning is not None and meaning.role != RESUME:
            self.meanings[name] = meaning


def _meaning(name: str, option: Option | None) -> Meaning | None:
    """What a parameter is to recovery; ``option`` is None if the script's parser was not read."""
    return meaning_of(name) if option is None else meaning_of(name, option.help, option.default)


def _output_place(value: object) -> str:
    """The place in a run's folder for a typed or default output; a file's is the folder itself, since
    nothing creates one below it."""
    file = str(value).rpartition("/")[2]
    return f"{{run_dir}}/{file}" if re.search(r"\w\.[A-Za-z]\w{0,11}$", file) else OUT


def _next_typed(words: deque[str], subject: DraftSubject) -> _TypedOption | str:
    """Take from the front of ``words`` an option with its value, or else one word."""
    word = words.popleft()
    flag, equals, value = word.partition("=")
    is_dashed = re.match(r"--?[A-Za-z]", word) is not None
    if not is_dashed and not re.fullmatch(r"[+~]{0,2}[A-Za-z_][\w./@-]*=.*", word, re.DOTALL):
        return word
    option = subject.option_of(flag)
    if option is None and is_dashed and (joined := re.match(r"-([A-Za-z])(\S.*)", word, re.DOTALL)) is not None:  # -b32
        short = subject.option_of(word[:2])
        is_value = short is not None and not short.is_flag
        if is_value or (short is None and not isinstance(number_or_text(joined[2]), str)):
            return _TypedOption(word[:2], joined[1] if short is None else short.name, joined[2], "", short)
    name = re.sub(r"[/@]", ".", re.sub("-", "_", flag.lstrip("-+~"))) if option is None else option.name
    if option is not None and (flag in option.negatives or (option.is_flag and not equals)):
        spelled = re.sub("-", "_", flag.lstrip("-"))
        return _TypedOption(flag, spelled if flag in option.negatives else name, None, option=option)
    if equals:
        return _TypedOption(flag, name, value, "=", option)
    is_value_next = (
        bool(words)
        and words[0] != "--"
        and (not words[0].startswith("-") or not isinstance(number_or_text(words[0]), str))
    )
    return _TypedOption(flag, name, words.popleft() if is_value_next else None, option=option)


def option_words(flag: str, separator: str, value: str) -> tuple[str, ...]:
    """The words of an option with its value; only the value without a flag."""
    if not flag:
        return (value,)
    return (flag, value) if separator == " " else (f"{flag}{separator}{value}",)


def _optional(words: tuple[str, ...]) -> tuple[str, ...]:
    """Words as an optional piece, which is there only with its parameter."""
    joined = [*words]
    joined[0], joined[-1] = f"[{joined[0]}", joined[-1]
    joined[-1] += "]"
    return tuple(joined)


def argument_of(flag: str, separator: str, name: str) -> tuple[str, ...]:
    """The words for a parameter, such as ``--steps {steps}``; only the value without a flag."""
    return option_words(flag, separator, f"{{{name}}}")


def quoted(words: Sequence[str]) -> str:
    """Words as text for `shlex.split`, with placeholders such as ``{lr}`` bare."""
    return " ".join(quote(word) for word in words)


def quote(word: str) -> str:
    """Quote a word for `shlex.split`, but leave placeholders such as ``{lr}`` bare."""
    return word if re.fullmatch(r"[\w@%+=:,./{}\[\]-]+", word) else "'" + word.replace("'", "'\"'\"'") + "'"
