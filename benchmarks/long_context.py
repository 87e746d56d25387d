"""An agent's prompt of 24,000 tokens, tools and their results included: the same text with speculation on and off.

    python -m benchmarks.long_context [--num-tokens 24000] [--num-new-tokens 32]

The model is a tiny random Llama with a long context and the default model's tokenizer: what it says means nothing,
what is compared is every token. Twelve runs under invariant execution: three drafters, and for each T = 0, 0.7 and 1
and one with top-k, top-p and a repetition penalty. The last line on stdout is one JSON document; exit code 1 if a text
differs, or if in all runs of a drafter nothing was drafted.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from typing import Any

import torch

from benchmarks.first.common import say
from draftproof import LLM, SamplingParams
from draftproof.chat import prepare_chat
from draftproof.drafters.draft_model import DraftModelDrafter
from draftproof.drafters.pruned import layers_of
from draftproof.sampling import SamplerChain
from draftproof.targets.embedded import embedded_folder
from draftproof.targets.hf import HFTarget

TEMPLATE = (
    "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}Answer with <tool_call>{}</tool_call>.\n"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMES = ("read_file", "list_files", "run_tests", "search")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name.replace('_', ' ')} in the repository",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
    for name in NAMES
]
METHODS = ("ngram", "suffix", "draft_model")
SETTINGS: dict[str, dict[str, Any]] = {
    "T = 0": {"temperature": 0.0},
    "T = 0.7": {"temperature": 0.7},
    "T = 1": {"temperature": 1.0},
    "filters and penalty": {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.05},
}
SEED = 24


def tokenizer_with_tools() -> Any:
    """The default model's tokenizer, with a template that has tools."""
    from transformers import AutoTokenizer

    tokenizer = copy.copy(AutoTokenizer.from_pretrained(str(embedded_folder())))
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def model_of(num_tokens: int) -> Any:
    """Two layers, weights large enough that its laws are neither flat nor certain."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49152, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=num_tokens, initializer_range=0.3,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(SEED)
    model = LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def transcript(tokenizer: Any, num_tokens: int) -> list[int]:
    """A chat of tool calls and their results; the last result is cut so that the prompt has `num_tokens` tokens."""
    messages = [{"role": "user", "content": "Find out why the tests of the parser fail, and mend it."}]
    line = "{index:04d}: def part_{number}(text: str, offset: int = {number}) -> Node: return parse(text[{number}:])\n"
    index = 0
    while True:
        call = {"name": NAMES[index % len(NAMES)], "arguments": {"path": f"src/part_{index % 17}.py"}}
        messages.append({"role": "assistant", "content": f"<tool_call>{json.dumps(call)}</tool_call>"})
        result = "".join(line.format(index=number, number=(7 * index + number) % 23) for number in range(40))
        messages.append({"role": "tool", "content": result})
        index += 1
        ids = list(prepare_chat(tokenizer, messages, tools=TOOLS).prompt_ids)
        if len(ids) >= num_tokens:
            # The end of the chat stays: the turn that is to be written.
            return ids[: num_tokens - 8] + ids[-8:]


def run(num_tokens: int, num_new_tokens: int) -> dict[str, Any]:
    """Plain texts once, then each drafter's; how many differ, how much was drafted, and the seconds of it."""
    tokenizer = tokenizer_with_tools()
    prompt = transcript(tokenizer, num_tokens)
    model = model_of(num_tokens + 512)
    target = HFTarget(model, num_slots=len(SETTINGS), invariant=True)
    params = [
        SamplingParams(seed=seed, max_tokens=num_new_tokens, ignore_eos=True, detokenize=False, **fields)
        for seed, fields in enumerate(SETTINGS.values())
    ]
    prompts = [prompt] * len(params)

    def texts(llm: LLM) -> list[Any]:
        began = time.perf_counter()
        outputs = llm.generate(prompts, params)
        say(f"  {time.perf_counter() - began:.1f} s")
        return outputs

    say(f"plain, {len(prompt)} tokens")
    expected = [output.outputs[0].token_ids for output in texts(LLM.from_target(target, None))]
    found: dict[str, Any] = {"num_prompt_tokens": len(prompt), "num_runs": 0, "num_different": 0, "drafted": {}}
    for method in METHODS:
        say(method)
        drafter = None
        if method == "draft_model":
            smaller = HFTarget(layers_of(model, (0, 1)), num_slots=len(params))
            drafter = DraftModelDrafter(smaller, SamplerChain(), target_tokenizer=None, draft_tokenizer=None)
        config = {"method": "ngram" if drafter else method, "num_speculative_tokens": 4, "draft_length": "fixed"}
        outputs = texts(LLM.from_target(target, None, speculative_config=config, drafter=drafter))
        found["num_runs"] += len(outputs)
        found["num_different"] += sum(
            output.outputs[0].token_ids != ids for output, ids in zip(outputs, expected, strict=True)
        )
        found["drafted"][method] = sum(o.metrics.speculative_decoding["num_draft_tokens"] for o in outputs)
    found["holds"] = found["num_different"] == 0 and all(found["drafted"].values())
    return found


def main() -> int:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-tokens", type=int, default=24_000)
    parser.add_argument("--num-new-tokens", type=int, default=32)
    given = parser.parse_args()
    found = run(given.num_tokens, given.num_new_tokens)
    print(json.dumps(found))
    return 0 if found["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
