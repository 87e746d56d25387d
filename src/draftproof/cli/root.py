"""`draftproof`: the group of verbs. Anything that is no verb is a prompt for `generate`."""

from __future__ import annotations

import sys
from typing import Any

import click

from draftproof import __version__
from draftproof.cli.failures import end_interrupted, end_with_error, json_was_asked_for
from draftproof.cli.verb import SETTINGS
from draftproof.cli.verbs import VERBS
from draftproof.errors import DraftproofError

DEFAULT_VERB = "generate"
_OWN_FLAGS = ("-h", "--help", "--version")


class Root(click.Group):
    """A group with a default verb, which turns the package's errors into one line and an exit code."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_piped = not args and sys.stdin is not None and not sys.stdin.isatty()
        is_prompt = bool(args) and args[0] not in self.commands and args[0] not in _OWN_FLAGS
        if is_piped or is_prompt:
            args = [DEFAULT_VERB, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        json_was_asked_for(ctx, [*getattr(ctx, "_protected_args", ()), *ctx.args])
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            end_interrupted(ctx)
        except (DraftproofError, click.UsageError) as error:
            end_with_error(ctx, error)


@click.group(cls=Root, context_settings=SETTINGS)
@click.version_option(__version__, prog_name="draftproof", message="%(prog)s %(version)s")
def main() -> None:
    """Speculative decoding that cannot change what the model says, and that can prove it.

    Without a verb the argument is a prompt: draftproof "text" is draftproof generate "text", and so is
    a text piped in. A prompt that is a verb's name needs the verb: draftproof generate prove.

    Every flag of a verb can be set by an environment variable: --top-p is DRAFTPROOF_TOP_P.
    Exit codes: 0 done, 1 failed or not exact, 2 a flag or parameter that can't be honoured, 130 Ctrl-C.
    """


for _verb in VERBS:
    main.add_command(_verb)
