"""Puts a trained drafter beside the package's code: 8-bit weights, configuration, training log, curves, model card.

Run: python -m tools.publish_drafter RUN --data TEXT [--acceptance acceptance.json] [--note TEXT ...]
RUN is the folder of a finished `draftproof train`. The figures of the card come from its log and from what
`draftproof bench acceptance --out` wrote, none are typed in.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from draftproof.drafters.learned.own import FOLDER
from draftproof.targets.embedded import NAME
from draftproof.train.eight_bit import QUANTIZATION, to_eight_bit

CARD = """# {method} drafter of {name}

Drafts tokens for {name}, the model that draftproof runs when none is named. It reads that model's hidden
states and is of no use with another one. What it drafts never changes what is said or its law, only how fast.

- Made by: `draftproof train {method}`, recipe `src/draftproof/train/recipes/{method}.py`
- Weights: {num_parameters:,} parameters, matrices as 8-bit integers with a scale for each row, {megabytes:.1f} MB
- Data: {data}
- Target: frozen; Apache-2.0, by Hugging Face
- Licence: Apache-2.0, as this project

## Training

{steps:,} steps in {minutes:.1f} minutes; learning rate up, then down along a half cosine by the clock.

| setting | value |
|---|---|
{settings}

Held-out text of the training prompts, never trained on (tokens a pass, bonus counted; by overlap of the laws at
temperature 1, and by equal argmax):

| steps | minutes | by overlap | by argmax |
|---|---|---|---|
{halves}

The line of half the steps is of the same run, whose learning rate had not come down yet. All steps: training.jsonl,
curves.svg.
{acceptance}{notes}"""
BENCH = """
## Acceptance

`draftproof bench acceptance`: {num_prompts} prompts of six kinds that were never trained on, {max_tokens} tokens at
most, {dtype}, tokens per pass with 95 % intervals over prompts:

| drafted | setting | kind | tokens per pass |
|---|---|---|---|
{rows}
"""
SHOWN = (
    "rows", "row_length", "learning_rate", "num_layers", "block_size", "num_anchors", "markov_rank", "markov_type",
    "num_steps_ahead", "position_share", "draft_vocab_size", "hard_labels", "loss", "compare_at", "last_turn_only",
    "init_from", "seed",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", required=True, help="What it was trained on.")
    parser.add_argument("--acceptance", type=Path, help="acceptance.json of these weights.")
    parser.add_argument("--note", action="append", default=[], help="A paragraph at the end of the card.")
    args = parser.parse_args()
    log = (args.run / "training" / "log.jsonl").read_text(encoding="utf-8")
    records = [json.loads(line) for line in log.splitlines()]
    method = records[0]["settings"]["method"]
    folder = FOLDER / method
    folder.mkdir(parents=True, exist_ok=True)
    size = _write_weights(args.run, folder)
    (folder / "training.jsonl").write_text(log, encoding="utf-8")
    shutil.copyfile(args.run / "training" / "curves.svg", folder / "curves.svg")
    acceptance = None if args.acceptance is None else json.loads(args.acceptance.read_text(encoding="utf-8"))
    card = CARD.format(
        method=method,
        name=NAME,
        num_parameters=records[0]["num_parameters"],
        megabytes=size / 1e6,
        data=args.data,
        steps=records[-1]["step"],
        minutes=records[-1]["seconds"] / 60,
        settings="\n".join(
            f"| {key} | {value} |"
            for key, value in records[0]["settings"].items()
            if key in SHOWN and value is not None
        ),
        halves="\n".join(_halves(records)),
        acceptance="" if acceptance is None else _bench(method, acceptance),
        notes="".join(f"\n{note}\n" for note in args.note),
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
    print(f"{folder}: {size:,} bytes of weights")


def _write_weights(run: Path, folder: Path) -> int:
    tensors = to_eight_bit(load_file(str(run / "model.safetensors")))
    path = folder / "model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, str(path), metadata={"format": "pt"})
    path.chmod(0o644)
    config = json.loads((run / "config.json").read_text(encoding="utf-8")) | {"quantization_config": QUANTIZATION}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return path.stat().st_size


def _halves(records: list[dict[str, Any]]) -> list[str]:
    held_out = [record for record in records if record["kind"] == "evaluation"]
    last = held_out[-1]
    half = min(held_out, key=lambda record: abs(2 * record["step"] - last["step"]))
    return [
        f"| {record['step']:,} | {record['seconds'] / 60:.1f} | {record['acceptance_length']:.2f} | "
        f"{record['greedy_length']:.2f} |"
        for record in (half, last)
    ]


def _bench(method: str, document: dict[str, Any]) -> str:
    figures = [figure for figure in document["figures"] if figure["method"] == method]
    rows = [
        f"| {figure['num_speculative_tokens']} {figure['draft_length']} | T={figure['temperature']:g}"
        + (f", top-p {figure['top_p']:g}" if figure["top_p"] < 1 else "")
        + f" | {figure['kind']} | {figure['tokens_per_pass']:.2f} ± {figure['half_width']:.2f} |"
        for figure in figures
    ]
    num_prompts = max(figure["num_prompts"] for figure in figures)
    shown = {key: document[key] for key in ("max_tokens", "dtype")}
    return BENCH.format(num_prompts=num_prompts, rows="\n".join(rows), **shown)


if __name__ == "__main__":
    main()
