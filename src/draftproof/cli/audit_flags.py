"""Flags that the audit's verbs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from draftproof.cli.values import Lines, Number
from draftproof.config import CHAINS

Function = TypeVar("Function", bound=Callable[..., Any])


def together(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Several options as one decorator, in the order of the help."""

    def add(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return add


html_flag = click.option("--html", metavar="FILE", help="Write the report as one HTML file that needs no network.")
seed_flag = click.option("--seed", type=Number(int), default=0, show_default=True, help="Of the audit.")
alpha_flag = click.option("--alpha", type=Number(float), default=1e-4, show_default=True,
                      help="The family-wise false-alarm rate.")  # fmt: skip
asked_flags = together(
    click.option("--prompts", metavar="FILE", help="A prompt in each line. [default: eight built-in ones]"),
    click.option("--setting", multiple=True, type=Lines(),
                 help="Sampling parameters, \"temperature=0.7 top_p=0.9\"; may be repeated. [default: temperature 1]"),
    click.option("--max-tokens", type=Number(int), default=64, show_default=True, help="Of each output."),
    click.option("--batch-size", type=Number(int), default=16, show_default=True, help="Requests handed over at once."),
    click.option("--endpoint-model", metavar="NAME", help="The model's name at an http(s) engine."),
    click.option("--endpoint-dialect", metavar="{vllm,llama.cpp,openai}", default="vllm", show_default=True,
                 help="Whose words for sampling parameters an http(s) engine takes."),
)  # fmt: skip
engine_flag = click.option(
    "--engine", default="ours", show_default=True, metavar="ENGINE",
    help="ours, plain (ours without speculation), transformers, transformers:lookup, transformers:assistant (the "
         "model of --drafter-weights), http://host/v1, or a function of (prompt ids, params, seed), module:function.",
)  # fmt: skip
against_flag = click.option("--against", default="plain", show_default=True, metavar="ENGINE", help="The other engine.")
logit_error_flag = click.option("--logit-error", type=Number(float), default=None,
                            help="By how much rounding may move the engine's logits. [default: 1e-4]")  # fmt: skip
matrix_flag = click.option("--matrix", is_flag=True, help="Settings for every sampling parameter, alone and together.")
drafter_flag = click.option("--drafter-weights", metavar="MODEL",
                        help="The drafter's model: for tests that need the draft's law, and to assist.")  # fmt: skip
preset_flag = click.option("--preset", metavar="{" + ",".join(CHAINS) + "}",
                       help="The chain that decides which law is right. [default: --chain's]")  # fmt: skip
