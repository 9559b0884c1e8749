"""`gputui completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from gputui.ui.cli.context import verb


@verb("completion", changes=False)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands, runs, profiles, studies, targets and GPUs in a shell.

    \b
    bash: gputui completion bash > ~/.local/share/bash-completion/completions/gputui
    zsh:  gputui completion zsh > a file _gputui in a folder of $fpath
    fish: gputui completion fish > ~/.config/fish/completions/gputui.fish
    """
    completion = get_completion_class(shell)
    assert completion is not None, "click knows it"
    click.echo(completion(ctx.find_root().command, {}, "gputui", "_GPUTUI_COMPLETE").source())
