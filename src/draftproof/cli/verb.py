"""A verb: a click command with runnable examples in its help, and flags that have environment variables.

--temperature is also DRAFTPROOF_TEMPERATURE, whatever the verb. --json and --debug belong to every verb.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from draftproof.cli.failures import remember_debug, remember_json

ENVIRONMENT_PREFIX = "DRAFTPROOF"
SETTINGS = {
    "auto_envvar_prefix": ENVIRONMENT_PREFIX,
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
}


class AliasedOption(click.Option):
    """An option with other engines' spellings, which work and are left out of the help.

    aliases: further flags, dashes included.
    """

    def __init__(self, *args: Any, aliases: Sequence[str] = (), **attrs: Any) -> None:
        super().__init__(*args, **attrs)
        self.aliases = tuple(aliases)
        self._shown = list(self.opts)
        self.opts = [*self.opts, *self.aliases]

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        every = self.opts
        self.opts = self._shown
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = every


class _WithExamples(click.Command):
    """A command whose help ends with examples. Each is a shell line, or a line of explanation."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **attrs: Any) -> None:
        super().__init__(*args, **attrs)
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
        super().format_epilog(ctx, formatter)


class Verb(_WithExamples):
    """A verb."""


class VerbGroup(_WithExamples, click.Group):
    """A verb that has verbs of its own."""


def verb(name: str, *, examples: Sequence[str]) -> Callable[[Callable[..., None]], Verb]:
    """Makes a function a verb, with --json and --debug after its own flags. Its docstring is the help."""

    def decorate(function: Callable[..., None]) -> Verb:
        function = click.option(
            "--debug", is_flag=True, is_eager=True, callback=remember_debug, expose_value=False,
            help="Show the traceback of an error.",
        )(function)  # fmt: skip
        function = click.option(
            "--json", is_flag=True, is_eager=True, callback=remember_json,
            help="Print one JSON document as the last line of stdout, and nothing else there.",
        )(function)  # fmt: skip
        # click lists first what was added last: these two shall come last.
        parameters: list[click.Parameter] = function.__click_params__  # type: ignore[attr-defined]
        parameters[:] = [*parameters[-2:], *parameters[:-2]]
        return click.command(name, cls=Verb, context_settings=SETTINGS, examples=examples)(function)

    return decorate
