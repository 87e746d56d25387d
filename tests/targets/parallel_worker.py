"""Run by torchrun in two processes: `python -m torch.distributed.run … parallel_worker.py FOLDER OUT MODE`.

The leader writes what it found to OUT, and each process to OUT.RANK whether it was in a group when it ended. MODE
`texts`: plain and speculative texts, logits, and a refused call. MODE `apart`: the leader's slot is filled behind the
follower's back.
"""

import atexit
import json
import os
import sys
from pathlib import Path

import torch

from draftproof import LLM, SamplingParams
from draftproof.errors import DraftproofError, ModelError
from draftproof.targets.base import ScoreRequest
from draftproof.targets.load import load_target
from draftproof.targets.parallel import LeadingTarget, follow, is_leader

PROMPTS = [[1, 2, 3, 1, 2, 3, 1, 2], [5, 6, 7, 5, 6, 7], [9, 8, 9, 8, 9]]
PARAMS = [SamplingParams(seed=seed, max_tokens=24, temperature=0.8, detokenize=False) for seed in range(3)]
CONFIG = {"method": "ngram", "num_speculative_tokens": 4, "draft_length": "fixed", "prompt_lookup_min": 1}
SCORED = ScoreRequest(0, (3, 1, 4, 1, 5))


def texts(leading: LeadingTarget) -> dict[str, object]:
    plain = LLM.from_target(leading, None).generate(PROMPTS, PARAMS)
    speculative = LLM.from_target(leading, None, speculative_config=CONFIG).generate(PROMPTS, PARAMS)
    for slot in range(leading.num_slots):
        leading.release(slot)
    refused = ""
    try:
        leading.rewind(0, 7)
    except DraftproofError as error:
        refused = str(error)
    logits = leading.score([SCORED])[0]
    learned = ""
    try:
        leading.request_taps([1])
    except DraftproofError as error:
        learned = str(error)
    return {
        "plain": [list(output.outputs[0].token_ids) for output in plain],
        "speculative": [list(output.outputs[0].token_ids) for output in speculative],
        "drafted": sum(o.metrics.speculative_decoding["num_draft_tokens"] for o in speculative),
        "logits": logits.tolist(),
        "refused": refused,
        "learned": learned,
        "kv_heads": leading.cache.groups[0].shape.heads,
    }


def main() -> None:
    folder, out, mode = sys.argv[1:]
    torch.set_num_threads(1)
    rank = os.environ["RANK"]
    # Registered first, so it runs last.
    atexit.register(lambda: Path(f"{out}.{rank}").write_text(json.dumps(torch.distributed.is_initialized())))
    target, _ = load_target(folder, dtype="float32", sharded=True, num_slots=2, max_model_len=256, invariant=True)
    if not is_leader():
        try:
            follow(target)
        except ModelError as error:
            Path(out).write_text(json.dumps({"error": str(error)}), encoding="utf-8")
            raise
        return
    with LeadingTarget(target) as leading:
        if mode == "texts":
            Path(out).write_text(json.dumps(texts(leading)), encoding="utf-8")
        else:
            target.cache.lengths[0] = 3
            leading.release(0)


if __name__ == "__main__":
    main()
