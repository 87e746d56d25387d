"""`draftproof train`: text made by the target, and drafters trained on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftproof.cli.loading import versions
from draftproof.cli.output import note, print_document, write
from draftproof.cli.values import Given, Number
from draftproof.cli.verb import SETTINGS, VerbGroup, verb
from draftproof.errors import ParameterError

if TYPE_CHECKING:
    from draftproof.train.target import FrozenTarget

_DATA_EXAMPLES = (
    "draftproof train data --target ./my-model --out text --num-tokens 4000000 --device cuda",
    "draftproof train data --out text --num-tokens 20000 --batch-size 8",
    "draftproof train data --out text --prompts prompts.txt",
    "draftproof train data --out more --passages text",
)
_EXAMPLES = (
    "draftproof train {method} --target ./my-model --data text --out drafter --minutes 5 --device cuda",
    "draftproof train {method} --data text --out drafter --num-steps 2000",
    "torchrun --nproc-per-node 4 -m draftproof train {method} --data text --out drafter --device cuda",
)
_GROUP_EXAMPLES = (
    "draftproof train data --target MODEL --out text",
    "draftproof train dspark --target MODEL --data text --out drafter",
)
# fmt: off
_SETTINGS = (
    "num_steps", "minutes", "rows", "row_length", "learning_rate", "num_anchors", "num_steps_ahead", "block_size",
    "num_layers", "markov_rank", "markov_type", "draft_vocab_size", "position_share", "save_head", "hard_labels",
    "loss", "last_turn_only", "compile", "init_from", "checkpoint_seconds", "evaluate_every", "seed",
)
# fmt: on


_NUM_PROMPTS = 16384


@click.group("train", cls=VerbGroup, context_settings=SETTINGS, examples=_GROUP_EXAMPLES)
def train() -> None:
    """Train a drafter for a target, on text that the target makes itself.

    First `data`, then a method. Both go on where they were when they are run again.
    """


def _target_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in reversed((
        click.option("--target", metavar="MODEL", help="A local folder or a hub name. [default: the embedded model]"),
        click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1, …"),
        click.option("--dtype", default="auto", show_default=True, help="Of the target's weights."),
    )):  # fmt: skip
        function = option(function)
    return function


@verb("data", examples=_DATA_EXAMPLES)
@_target_options
@click.option("--out", required=True, metavar="FOLDER", help="Where the shards go.")
@click.option("--num-tokens", type=Number(int), default=4_000_000, show_default=True, help="Tokens to make at least.")
@click.option("--minutes", type=Number(float), help="Begin no new shard after so many minutes.")
@click.option("--prompts", metavar="FILE", help="Users' texts, one a line. [default: built-in ones of six kinds]")
@click.option("--passages", metavar="FOLDER", help="Text that this command made before: built-in prompts ask about "
              "passages of it. [default: about a short list of sentences]")  # fmt: skip
@click.option("--prompt-share", type=Number(float), help="Of documents that begin with a prompt; the others begin at "
              "the bare user turn, which the target then writes itself. [default: 0.5]")  # fmt: skip
@click.option("--system-share", type=Number(float), help="Of the documents without a prompt: so many begin with one of "
              "the built-in system prompts (rewrite, summarise, …). [default: 0]")  # fmt: skip
@click.option("--stem-share", type=Number(float), help="Of the documents without a prompt: in so many the user's turn "
              "begins with built-in first words, which the target goes on from. [default: 0]")  # fmt: skip
@click.option("--batch-size", type=Number(int), help="Sequences at once. [default: 512 on a GPU, 8 elsewhere]")
@click.option("--num-columns", type=Number(int), help="Steps of a shard. [default: 1024]")
@click.option("--max-length", type=Number(int), help="Tokens of a document. [default: 512]")
@click.option("--temperature", metavar="T,T,…", help="Of the sampling; each document takes one of them. [default: 1.0]")
@click.option("--user-temperature", type=Number(float), help="Of users' turns that the target writes itself. "
              "[default: the highest of --temperature]")  # fmt: skip
@click.option("--top-p", type=Number(float), help="[default: 1.0]")
@click.option("--seed", type=Number(int), help="[default: 0]")
def data(**given: Any) -> None:
    """Make training text with the target itself.

    Many sequences are sampled at once; a shard is written as soon as it is done, and a run that was interrupted goes on
    behind the shards that are there.
    """
    from draftproof.train.generate import GenerationSettings, generate_corpus
    from draftproof.train.prompts import built_in_prompts
    from draftproof.train.starts import SYSTEMS, widened_stems
    from draftproof.train.turns import read_turns

    target = _load(given)
    names = (
        "prompt_share",
        "system_share",
        "stem_share",
        "batch_size",
        "num_columns",
        "max_length",
        "user_temperature",
        "top_p",
        "seed",
    )
    chosen = {name: given[name] for name in names if given[name] is not None}
    if given["temperature"] is not None:
        chosen["temperatures"] = _numbers("temperature", given["temperature"], float)
    chosen.setdefault("batch_size", 512 if target.device.type == "cuda" else 8)
    settings = GenerationSettings(**chosen)
    turns = read_turns(target.tokenizer, target.eos_token_ids, SYSTEMS, widened_stems(target.tokenizer, settings.seed))
    texts = _prompts(given["prompts"]) or built_in_prompts(
        _NUM_PROMPTS, settings.seed, _passages(given, target, turns.end_ids)
    )
    encoded = [[int(i) for i in target.tokenizer(text, add_special_tokens=False)["input_ids"]] for text in texts]
    began, made, shards = time.monotonic(), 0, 0
    before: tuple[float, int] | None = None
    for shards, made in generate_corpus(
        target,
        turns,
        encoded,
        Path(given["out"]),
        settings,
        num_tokens=given["num_tokens"],
        is_time_up=lambda: _is_time_up(began, given["minutes"]),
    ):
        now = time.monotonic()
        rate = "" if before is None else f", {(made - before[1]) / max(now - before[0], 1e-9):,.0f} tokens a second"
        before = (now, made)
        note(f"{shards} shards, {made:,} tokens, {now - began:.0f} s{rate}")
    document = {"folder": str(given["out"]), "num_shards": shards, "num_tokens": made,
                "seconds": round(time.monotonic() - began, 2)}  # fmt: skip
    if given["json"]:
        print_document({**document, "versions": versions()})
    else:
        write(f"{made:,} tokens in {shards} shards in {given['out']}\n")


def _is_time_up(began: float, minutes: float | None) -> bool:
    return minutes is not None and time.monotonic() - began > 60 * minutes


def _prompts(path: str | None) -> list[str]:
    if path is None:
        return []
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ParameterError("prompts", path, "a file of one prompt a line", str(error)) from error
    found = [line for line in lines if line.strip()]
    if not found:
        raise ParameterError("prompts", path, "a file with at least one line that is not blank")
    return found


def _passages(given: dict[str, Any], target: FrozenTarget, end_ids: frozenset[int]) -> list[list[str]]:
    folder = given["passages"]
    if folder is None:
        return []
    if given["prompts"] is not None:
        raise ParameterError("passages", folder, "no --prompts beside it: passages fill built-in prompts")
    from draftproof.train.corpus import Corpus
    from draftproof.train.passages import read_passages

    return read_passages(Corpus(Path(folder), target.vocab_size), target.tokenizer.decode, end_ids)


def _load(given: dict[str, Any]) -> FrozenTarget:
    from draftproof.train.processes import own_device
    from draftproof.train.target import FrozenTarget

    return FrozenTarget.load(given["target"], device=own_device(given["device"]), dtype=given["dtype"])


def _numbers(name: str, text: str, kind: Callable[[str], Any]) -> tuple[Any, ...]:
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise ParameterError(name, text, "numbers with commas between them") from None


def _method(name: str) -> click.Command:
    @verb(name, examples=[line.format(method=name) for line in _EXAMPLES])
    @_target_options
    @click.option("--data", required=True, metavar="FOLDER", help="What `draftproof train data` has written.")
    @click.option(
        "--out", required=True, metavar="FOLDER", help="The drafter's folder; training/ in it has state and log."
    )
    @click.option("--num-steps", type=Number(int), help="[default: 2000]")
    @click.option(
        "--minutes", type=Number(float), help="End after so many minutes, or after the steps if that is sooner."
    )
    @click.option("--rows", type=Number(int), help="Packed rows of a batch, on each GPU. [default: 16]")
    @click.option("--row-length", type=Number(int), help="Tokens of a row. [default: 1024]")
    @click.option("--learning-rate", type=Number(float), help="[default: 6e-4]")
    @click.option("--num-layers", type=Number(int), help="Of the drafter. [default: 2]")
    @click.option(
        "--taps", metavar="K,K,…", help="Hidden states of the target that it reads, as transformers counts them."
    )
    @click.option(
        "--draft-vocab-size", type=Number(int, none_too=True), help="Only the most frequent tokens. [default: all]"
    )
    @click.option("--save-head/--no-save-head", default=None, help="Write a reduced output layer as well, which other "
                  "packages' readers need. [default: write it]")  # fmt: skip
    @click.option("--block-size", type=Number(int), help="dflash, dspark: slots of a block. [default: 8]")
    @click.option("--num-anchors", type=Number(int), help="dflash, dspark: blocks of a row. [default: 64]")
    @click.option("--markov-rank", type=Number(int), help="dspark. [default: 256]")
    @click.option("--markov-type", metavar="{vanilla,gated,rnn}", help="dspark. [default: vanilla]")
    @click.option("--hard-labels/--soft-labels", default=None, help="Cross-entropy with the text's token, or with the "
                  "target's law. [default: soft]")  # fmt: skip
    @click.option("--loss", metavar="{cross-entropy,distance}", help="eagle3, mtp, dflash: or the laws' distance, as "
                  "dspark's. [default: cross-entropy]")  # fmt: skip
    @click.option("--compare-at", metavar="T,T,…", help="Temperatures at which the drafter's law is compared with the "
                  "target's; each position takes one. [default: 1.0]")  # fmt: skip
    @click.option("--last-turn-only/--all-turns", default=None, help="Learn from each document's last turn only, not "
                  "from users' turns that the target wrote. [default: all]")  # fmt: skip
    @click.option("--num-steps-ahead", type=Number(int), help="eagle3, mtp: drafted tokens trained on. [default: 5]")
    @click.option("--position-share", type=Number(float), help="eagle3, mtp: of positions with a loss. [default: 0.25]")
    @click.option("--compile/--no-compile", default=None, help="Layers and the comparison of logits go through "
                  "torch.compile: faster on a GPU, after a minute. [default: don't]")  # fmt: skip
    @click.option("--init-from", metavar="FOLDER", help="A drafter whose weights are the first ones. [default: none]")
    @click.option("--checkpoint-seconds", type=Number(float), help="[default: 30]")
    @click.option("--evaluate-every", type=Number(int), help="Steps. [default: 200]")
    @click.option("--seed", type=Number(int), help="[default: 0]")
    def command(**given: Any) -> None:
        from draftproof.train.loop import train as run
        from draftproof.train.processes import rank_and_world
        from draftproof.train.settings import TrainSettings

        chosen: dict[str, Any] = {
            key: None if given[key] is Given.NONE else given[key] for key in _SETTINGS if given[key] is not None
        }
        taps = None if given["taps"] is None else _numbers("taps", given["taps"], int)
        if name == "dspark" and given["loss"] == "cross-entropy":
            raise ParameterError("loss", given["loss"], "distance, or left out, for dspark")
        if given["compare_at"] is not None:
            chosen["compare_at"] = _numbers("compare_at", given["compare_at"], float)
        settings = TrainSettings(method=name, tap_ids=taps, **chosen)
        last = run(_load(given), Path(given["data"]), Path(given["out"]), settings, report=_report)
        if rank_and_world()[0] > 0:
            return
        if given["json"]:
            print_document({"folder": given["out"], "method": name, **last, "versions": versions()})
        else:
            write(f"{given['out']}: {name} after {last['step']} steps, {last['acceptance_length']:.2f} tokens a pass\n")

    command.help = f"Train a {name} drafter on the target's text; the recipe is in train/recipes/{name}.py."
    return command


def _report(record: dict[str, Any]) -> None:
    if record["kind"] == "start":
        note(f"{record['num_parameters']:,} parameters, {record['num_tokens']:,} tokens of text")
        return
    figures = ", ".join(
        f"{key} {value:.3g}" for key, value in record.items() if isinstance(value, float) and key != "seconds"
    )
    note(f"{record['kind']} step {record['step']}, {record['seconds']:.0f} s: {figures}")


train.add_command(data)
for _name in ("dflash", "dspark", "eagle3", "mtp"):
    train.add_command(_method(_name))
