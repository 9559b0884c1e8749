"""`gputui completion`, and the answers to bash's script."""

from __future__ import annotations

import os
import re

import click
from click.shell_completion import BashComplete, add_completion_class, get_completion_class

from gputui.ui.cli.context import Session, verb

_SCRIPT = """\
%(complete_func)s() {
    local type
    {
        read -r type
        mapfile -t COMPREPLY
    } < <(env COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORD="$2" %(complete_var)s=bash_complete "$1")
    if [[ $type == file ]]; then
        compopt -o default
    elif [[ $type == dir ]]; then
        compopt -o dirnames
    fi
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""
_OPTION = re.compile(r"-[^=]*=|")
# Blanks; what is quoted, with the quote that ends it if it is there; any other character.
_PARTS = re.compile(r"""(\s+)|'([^']*)('?)|"((?:\\.|[^"\\])*)("?)|\\?(.)""", re.DOTALL)
_ESCAPED = re.compile(r'\\([$`"\\])')
_WRITTEN = {
    "": (re.compile(r"[^\w@%+=:,./-]"), r"\\\g<0>"),
    "'": (re.compile("'"), r"'\\''"),
    '"': (re.compile(r'[$`"\\]'), r"\\\g<0>"),
}
"""By the open quote: the characters that it does not protect, and how they are written there."""


@add_completion_class
class QuotingBashComplete(BashComplete):
    """Completion in bash by lines that it can insert as they are: quoted, and without what stands before the part of
    a word that readline replaces, which begins behind a colon or an equals sign."""

    source_template = _SCRIPT

    def complete(self) -> str:
        """The kind of the values, then a line for each."""
        shell_words, quote = split_line(os.environ["COMP_LINE"])
        *before, word = shell_words
        items = self.get_completions(before[1:], word)
        if items and items[0].type != "plain":
            return str(items[0].type)
        replaced, _ = split_line(quote + os.environ["COMP_WORD"])
        start = len(word) - len(replaced[-1])
        option = _OPTION.match(word)
        assert option is not None, "it may be empty"
        special, written = _WRITTEN[quote]
        return "\n".join(["plain", *(special.sub(written, f"{option[0]}{item.value}"[start:]) for item in items)])


def split_line(line: str) -> tuple[list[str], str]:
    """The words of a line as bash reads them, the last as far as it is typed, and the quote that is open there."""
    shell_words = [""]
    quote = ""
    for blanks, single, single_end, double, double_end, character in (part.groups() for part in _PARTS.finditer(line)):
        if blanks is not None:
            shell_words.append("")
        elif single is not None:
            shell_words[-1] += single
            quote = "" if single_end else "'"
        elif double is not None:
            shell_words[-1] += _ESCAPED.sub(r"\1", double)
            quote = "" if double_end else '"'
        else:
            shell_words[-1] += character
    return shell_words, quote


@verb("completion", changes=False)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def command(_session: Session, shell: str) -> None:
    """Print the script that completes commands, runs, profiles, studies, targets and GPUs in a shell.

    \b
    bash: gputui completion bash > ~/.local/share/bash-completion/completions/gputui
    zsh:  gputui completion zsh > a file _gputui in a folder of $fpath
    fish: gputui completion fish > ~/.config/fish/completions/gputui.fish
    """
    completion = get_completion_class(shell)
    program = click.get_current_context().find_root().command
    assert completion is not None, "click knows it"
    click.echo(completion(program, {}, "gputui", "_GPUTUI_COMPLETE").source())
