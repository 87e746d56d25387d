"""The trace of a drawn tree: each decision can be replayed from the noise that it names."""

import io
import json

from draftproof import LLM, SamplingParams
from draftproof.drafters.tree import SampledTreeDrafter
from draftproof.targets.toy import TableTarget
from draftproof.verify import get_verifier
from tests.drafters.tree.tables import TableSource, uneven_table


def test_hybrids_coins_and_residuals():
    drafter = SampledTreeDrafter(TableSource(uneven_table(5, 8)), get_verifier("hybrid").siblings, max_depth=3)
    settings = {"topology": "tree", "num_tree_nodes": 8, "draft_length": "fixed", "verifier": "hybrid"}
    llm = LLM.from_target(TableTarget(uneven_table(5, 3)), None, speculative_config=settings, drafter=drafter)
    stream = io.StringIO()
    llm.generate(
        [[1, 2]] * 6, [SamplingParams(seed=s, max_tokens=40, detokenize=False) for s in range(6)], trace=stream
    )
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert len(lines) == 240
    kinds = {(line["outcome"], line["noise"]["purpose"]) for line in lines}
    assert {("accepted", "COIN"), ("accepted", "RESIDUAL"), ("bonus", "BONUS")} <= kinds
    for line in lines:
        if line["outcome"] == "accepted" and line["noise"]["purpose"] == "COIN":
            assert line["noise"]["value"] * line["draft_prob"] < line["target_prob"]
            assert line["draft_prob"] < 1 and line["noise"]["index"] == line["node"]
        elif line["outcome"] == "accepted":
            assert line["draft_prob"] == 1
