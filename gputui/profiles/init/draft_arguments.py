"""The parameters and arguments of a drafted profile, from typed words and a script's options."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gputui.profiles.init.draft_subject import DraftSubject
from gputui.profiles.init.roles import NUMBER_ROLES, RESUME, Meaning, meaning_of
from gputui.profiles.init.script_options import Option
from gputui.profiles.init.typed_command import number_or_text
from gputui.profiles.params import MAX_INTEGER, NAME_PATTERN, RESERVED_NAMES, RUN_DIR
from gputui.runs.command import PIECE_START, PLACEHOLDER, format_value
from gputui.runs.spec import ROLE_NAMES, Scalar, Scope

# What a framework has by default, whatever trains with it.
_FRAMEWORK_ROLES = ("batch_size", "grad_accum")
_CONFIGURATION = re.compile(r".+\.(?:ya?ml|json|toml|cfg|ini|py)")
_ASSIGNED = re.compile(r"[+~]{0,2}[A-Za-z_][\w./@-]*=.*", re.DOTALL)
_JOINED = re.compile(r"-([A-Za-z])(\S.*)", re.DOTALL)  # -b32


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
    parameter lr. The command line stays exactly as it was typed, and gets options that the script has for certain.

    Attributes:
        params: parameter → default.
        meanings: parameter → what it is to recovery.
        spellings: parameter → the text of its typed number, where gputui would write another.
        args: the words behind the script or program; program: those of a command before them.
        resume: the option that is given a checkpoint, None if the script shows none.
        undeclared: typed options that the parser, as far as it was read, does not have.
        untyped: options that were not typed and have no argument.
    """

    def __init__(self, subject: DraftSubject) -> None:
        self.subject = subject
        self.params: dict[str, Scalar] = {}
        self.meanings: dict[str, Meaning] = {}
        self.spellings: dict[str, str] = {}
        self.args: list[str] = []
        self.resume: Option | None = None
        self._resume_doubt: int | None = None
        self.undeclared: list[str] = []
        options = subject.options
        typed = self._add_typed()
        self.program = [self._literal(word) for word in subject.command.program]
        typed_groups = {options[name].exclusive_group for name in typed if name in options} - {None}
        self.untyped = [
            option
            for name, option in options.items()
            if name not in typed and not option.takes_many and option.exclusive_group not in typed_groups
        ]
        for option in self.untyped:
            meaning = _meaning(option.name, option)
            if meaning is not None and meaning.role == RESUME and self._has_options:
                self._note_resume(option, meaning)
        self._offer()

    @property
    def _has_options(self) -> bool:
        """True if the script has the options that were read, perhaps with others: of argparse's only parser it has."""
        return self._is_whole or (self.subject.survey.is_certain and self.subject.survey.style == "argparse")

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

    def add_option(self, option: Option, default: Scalar) -> None:
        """Add an option that was not typed."""
        argument = argument_of(option.flag, self.subject.separator_of(option), option.name)
        if option.is_flag:
            argument = _optional(argument)
        self._add_param(option.name, default, argument, option)

    def _add_typed(self) -> set[str]:
        """Take the typed words; returns the names of the options among them."""
        typed_words = deque(self.subject.command.arguments)
        typed: set[str] = set()
        positional = deque(option for option in self.subject.options.values() if not option.flag)
        while typed_words:
            word = _next_typed(typed_words, self.subject)
            if isinstance(word, _TypedOption):
                typed |= self._add_typed_option(word)
                if word.option is not None and word.option.takes_many:
                    while typed_words and not typed_words[0].startswith("-"):
                        self.args.append(self._literal(typed_words.popleft()))
            elif word == "--":
                self.args += [word, *map(self._literal, typed_words)]
                break
            elif word.startswith("-") and number_or_text(word) == word:
                self.args.append(self._literal(word))
            elif positional and not positional[0].takes_many:
                option = positional.popleft()
                typed.add(option.name)
                self._add_positional(word, option)
            else:
                self.args.append(self._literal(word))
        return typed

    def _add_typed_option(self, typed: _TypedOption) -> set[str]:
        """Add a typed option; returns its names."""
        flag = typed.flag
        value = typed.value
        option = typed.option
        name = self._free_name(typed.name)
        meaning = _meaning(typed.name, option)
        if meaning is not None and meaning.role == RESUME and (option is not None or not meaning.doubt):
            self._note_resume(option or Option(flag, typed.name, is_flag=value is None), meaning)
        is_parameter = re.fullmatch(NAME_PATTERN, typed.name) is not None and typed.name not in RESERVED_NAMES
        if value is None and is_parameter:
            self._add_param(name, default=True, argument=_optional((flag, f"{{{name}}}")), option=option)
        elif value is None:
            self.args.append(self._literal(flag))
        elif is_parameter and RUN_DIR not in value:
            argument = argument_of(flag, typed.separator, name)
            self._add_param(name, self._typed_value(name, value, option), argument, option, text=value)
        else:
            self.args += map(self._literal, option_words(flag, typed.separator, value))
        if option is None:
            self.undeclared.append(flag)
            return {typed.name}
        return {typed.name, option.name}

    def _add_positional(self, word: str, option: Option) -> None:
        """Add a typed word for a positional argument."""
        if option.name in RESERVED_NAMES or RUN_DIR in word:
            self.args.append(self._literal(word))
        else:
            name = self._free_name(option.name)
            self._add_param(name, self._typed_value(name, word, option), (f"{{{name}}}",), option, text=word)

    def _literal(self, word: str) -> str:
        """A typed word that reaches the program as it is: what looks like a placeholder, or like the beginning of an
        optional piece, becomes a parameter's value."""

        def stand_in(match: re.Match[str]) -> str:
            if match[0] == RUN_DIR:  # the only placeholder that a typed word may have
                return RUN_DIR
            name = self._free_name("literal")
            self.params[name] = match[0]
            return f"{{{name}}}"

        literal = PLACEHOLDER.sub(stand_in, word)
        opening = PIECE_START.match(literal)
        if opening is not None:
            literal = f"{stand_in(opening)}{literal[opening.end() :]}"
        return literal

    def _note_resume(self, option: Option, meaning: Meaning) -> None:
        if self._resume_doubt is None or meaning.doubt < self._resume_doubt:
            self.resume = option
            self._resume_doubt = meaning.doubt

    def _free_name(self, name: str) -> str:
        """The name, with a number behind it if the command has it already."""
        number = 1
        free = name
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
        if role in NUMBER_ROLES or (option is not None and option.is_number) or format_value(number) == text:
            return number
        return text

    def _offer(self) -> None:
        """Add the option of each role that no typed one has, if its default is certain. They come first, since not
        every word may stand behind the typed ones."""
        typed_roles = {meaning.role for meaning in self.meanings.values()}
        offers: dict[str, tuple[int, Option]] = {}
        for option in self._options_with_default():
            meaning = _meaning(option.name, option)
            if meaning is None or meaning.role in (*typed_roles, RESUME) or not self._is_certain(option, meaning):
                continue
            if meaning.role not in offers or meaning.doubt < offers[meaning.role][0]:
                offers[meaning.role] = (meaning.doubt, option)
        typed_args = self.args
        self.args = []
        for _, option in offers.values():
            self.add_option(option, option.default)
        self.args += typed_args

    def _options_with_default(self) -> Iterator[Option]:
        """Untyped options with their default: the script's own, or that of a typed configuration file where the option
        has none."""
        has_configuration = any(_CONFIGURATION.fullmatch(word) for word in self.subject.command.arguments)
        configured = self.subject.configured
        for option in self.untyped:
            if option.exclusive_group is not None or not option.is_known or not option.flag:
                continue  # another option of its group may be typed
            if not has_configuration:
                yield option
            elif option.default is None and option.name in configured:
                # What the file says, given as an option too, changes nothing.
                yield replace(option, default=configured[option.name])

    def _is_certain(self, option: Option, meaning: Meaning) -> bool:
        """Return whether an option, given with its default, changes nothing."""
        is_off = option.is_flag and option.default is False
        is_number = isinstance(option.default, int | float) and not option.is_flag
        if not is_off and not is_number:
            return False
        if option.name in self.subject.survey.options:
            return self._is_whole
        return meaning.role in _FRAMEWORK_ROLES

    def _add_param(
        self, name: str, default: Scalar, argument: Sequence[str], option: Option | None, text: str | None = None
    ) -> None:
        """Add a parameter; ``text`` is how its default was typed."""
        self.params[name] = default
        if text is not None and text != format_value(default):
            self.spellings[name] = text
        self.args += argument
        meaning = _meaning(name, option)
        if meaning is not None and meaning.role != RESUME:
            self.meanings[name] = meaning


def _meaning(name: str, option: Option | None) -> Meaning | None:
    """What a parameter is to recovery; ``option`` is None if the script's parser was not read."""
    if option is None:
        return meaning_of(name)
    return meaning_of(name, option.help, option.default)


def _next_typed(typed_words: deque[str], subject: DraftSubject) -> _TypedOption | str:
    """Take from the front of ``typed_words`` an option with its value, or else one word."""
    word = typed_words.popleft()
    flag, equals, value = word.partition("=")
    is_dashed = re.match(r"--?[A-Za-z]", word) is not None
    if not is_dashed and _ASSIGNED.fullmatch(word) is None:
        return word
    option = subject.option_of(flag)
    if option is None and is_dashed and (joined := _joined_option(word, subject)) is not None:
        return joined
    if option is None:
        name = re.sub(r"[/@]", ".", flag.lstrip("-+~").replace("-", "_"))
    elif flag in option.negatives:
        return _TypedOption(flag, flag.lstrip("-").replace("-", "_"), value=None, option=option)
    elif option.is_flag and not equals:
        return _TypedOption(flag, option.name, value=None, option=option)
    else:
        name = option.name
    if equals:
        return _TypedOption(flag, name, value, "=", option)
    if (
        typed_words
        and typed_words[0] != "--"
        and (not typed_words[0].startswith("-") or number_or_text(typed_words[0]) != typed_words[0])
    ):
        return _TypedOption(flag, name, typed_words.popleft(), option=option)
    return _TypedOption(flag, name, value=None, option=option)


def _joined_option(word: str, subject: DraftSubject) -> _TypedOption | None:
    """The option of a word such as ``-b32``; None if it may be another thing."""
    joined = _JOINED.match(word)
    if joined is None:
        return None
    letter, value = joined.groups()
    short = subject.option_of(f"-{letter}")
    if short is None and number_or_text(value) != value:
        return _TypedOption(f"-{letter}", letter, value, "")
    if short is not None and not short.is_flag:
        return _TypedOption(f"-{letter}", short.name, value, "", short)
    return None


def argument_of(flag: str, separator: str, name: str) -> tuple[str, ...]:
    """The words for a parameter, such as ``--steps {steps}``; only the value without a flag."""
    return option_words(flag, separator, f"{{{name}}}")


def option_words(flag: str, separator: str, value: str) -> tuple[str, ...]:
    """The words of an option with its value; only the value without a flag."""
    if not flag:
        return (value,)
    if separator == " ":
        return (flag, value)
    return (f"{flag}{separator}{value}",)


def _optional(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Words as an optional piece, which is there only with its parameter."""
    piece = list(arguments)
    piece[0] = f"[{piece[0]}"
    piece[-1] += "]"
    return tuple(piece)
