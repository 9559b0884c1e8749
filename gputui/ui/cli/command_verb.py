"""Commands that take a profile, or a script or program with options of its own."""

from __future__ import annotations

import click

from gputui.ui.cli.context import Session, Verb

IS_COMMAND = "gputui.is_command"
"""Of a click context: whether its words are a command and not a profile."""


class CommandVerb(Verb):
    """A command whose options come before a typed command, but stand anywhere beside a profile."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        argv, is_command = self._argv_of(ctx, args)
        session = ctx.find_object(Session)
        if session is not None and not is_command:
            from gputui.ui.cli import launch_spec

            is_command = launch_spec.is_command(session, argv[:1])
        ctx.allow_interspersed_args = not is_command
        ctx.meta[IS_COMMAND] = is_command
        return super().parse_args(ctx, args)

    def _argv_of(self, ctx: click.Context, args: list[str]) -> tuple[list[str], bool]:
        """The words behind gputui's own options, and whether ``--`` separates them."""
        parser = self.make_parser(ctx)
        parser.allow_interspersed_args = False
        parsed, _, _ = parser.parse_args(list(args))
        typed = parsed.get("argv")
        argv: list[str] = []
        if isinstance(typed, tuple | list):
            argv += typed
        return argv, args[: len(args) - len(argv)][-1:] == ["--"]
