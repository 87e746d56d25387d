"""How a verb ends when it does not end well: one line on stderr, and an exit code.

0  done
1  failed: a model that can't be read, a request that failed, a proof or a comparison that did not hold
2  a flag or a parameter that can't be honoured
130  Ctrl-C
"""

from __future__ import annotations

import traceback
from typing import Any, NoReturn

import click

from draftproof.cli.output import note, print_document
from draftproof.errors import DraftproofError, ParameterError

FAILED = 1
USAGE = 2
INTERRUPTED = 130

_JSON = "draftproof.json"
_DEBUG = "draftproof.debug"


def remember_json(context: click.Context, _: click.Parameter, value: bool) -> bool:
    """Callback of --json: a failure, too, is then a document on stdout."""
    context.meta[_JSON] = value
    return value


def remember_debug(context: click.Context, _: click.Parameter, value: bool) -> bool:
    """Callback of --debug: a failure then shows its traceback."""
    context.meta[_DEBUG] = value
    return value


def end_with_error(context: click.Context, error: Exception) -> NoReturn:
    """Reports `error` and ends with its exit code."""
    if context.meta.get(_DEBUG):
        traceback.print_exception(error)
    message = _message(error)
    note(f"error: {message}")
    if context.meta.get(_JSON):
        print_document({"error": message, "error_type": type(error).__name__})
    raise click.exceptions.Exit(exit_code(error))


def end_interrupted(context: click.Context) -> NoReturn:
    """Reports a Ctrl-C that came where no text was being made."""
    note("\ninterrupted")
    if context.meta.get(_JSON):
        print_document({"error": "interrupted", "error_type": "KeyboardInterrupt"})
    raise click.exceptions.Exit(INTERRUPTED)


def exit_code(error: Exception) -> int:
    """USAGE for flags and parameters, FAILED for everything else."""
    return USAGE if isinstance(error, (ParameterError, click.UsageError)) else FAILED


def error_line(error: DraftproofError) -> str:
    """`error: …`, in one line."""
    return f"error: {_message(error)}"


def json_was_asked_for(context: click.Context, arguments: list[Any]) -> None:
    """Takes note of --json before the verb's flags are parsed, so that a misspelt flag is a document too."""
    before_dashes = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--json" in before_dashes:
        context.meta[_JSON] = True


def _message(error: Exception) -> str:
    if isinstance(error, click.ClickException):
        text = error.format_message()
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "draftproof"
        text = f"{text.rstrip('.')}; see {where} --help"
    else:
        text = str(error)
    return " ".join(text.split())
