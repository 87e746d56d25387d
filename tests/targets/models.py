"""Tiny random models of several architectures, with weights large enough that their logits differ clearly."""

from typing import Any

import torch
import transformers

from draftproof.targets.base import ScoreRequest
from draftproof.targets.hf import HFTarget

VOCAB_SIZE = 64
WINDOW = 8
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
ARCHITECTURES = ("llama", "qwen3", "gemma3", "mistral")


def tiny_model(name: str, dtype: torch.dtype = torch.float32, seed: int = 7, **changes: Any) -> Any:
    """A model whose weights depend on `seed` alone; the sliding-window ones have a window of `WINDOW`."""
    settings = COMMON | changes
    with torch.random.fork_rng():
        torch.random.manual_seed(seed)
        if name == "llama":
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))
        elif name == "qwen3":
            model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**settings))
        elif name == "gemma3":
            kinds = ["sliding_attention", "full_attention", "sliding_attention"]
            config = transformers.Gemma3TextConfig(
                **settings, sliding_window=WINDOW, layer_types=kinds, query_pre_attn_scalar=8
            )
            model = transformers.Gemma3ForCausalLM(config)
        else:
            model = transformers.MistralForCausalLM(transformers.MistralConfig(**settings, sliding_window=WINDOW))
    return model.eval().to(dtype)


def random_ids(num_tokens: int, seed: int = 3) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB_SIZE, (num_tokens,), generator=generator).tolist()


def plain_logits(model: Any, token_ids: list[int]) -> torch.Tensor:
    """The model's own logits [tokens, vocab], one call, no cache."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0]


def score_one(
    target: HFTarget, slot: int, token_ids: list[int], parents: tuple[int, ...] | None = None
) -> torch.Tensor:
    return target.score([ScoreRequest(slot, tuple(token_ids), parents)])[0]


def attention_weights(query: torch.Tensor, keys: torch.Tensor, attn_mask: Any, scale: float | None) -> torch.Tensor:
    """exp(score - maximum) [rows, heads, queries, keys] in float32, each a sum of its own, whatever is beside it."""
    scores = (query.float()[:, :, :, None] * keys.float()[:, :, None]).sum(dim=-1) * (scale or query.shape[3] ** -0.5)
    scores = scores if attn_mask is None else scores + attn_mask.float()
    return (scores - scores.amax(dim=-1, keepdim=True)).exp()


def attention_in_blocks(block: int) -> Any:
    """Attention that adds up `block` keys in their order, and then the blocks, on any machine."""

    def attention(
        query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, attn_mask: Any, scale: Any = None, **_: Any
    ) -> Any:
        weights = attention_weights(query, keys, attn_mask, scale)
        outputs = []
        for begin in range(0, keys.shape[2], block):
            out = torch.zeros(*query.shape[:3], values.shape[3] + 1)
            for column in range(begin, min(begin + block, keys.shape[2])):
                weight = weights[..., column : column + 1]
                out = out + torch.cat([weight * values[:, :, column : column + 1].float(), weight], dim=-1)
            outputs.append(out)
        total = sum(outputs)
        return (total[..., :-1] / total[..., -1:]).to(query.dtype)

    return attention


def attention_in_pieces(piece: int, cut: int = 1 << 20) -> Any:
    """Attention that adds up `piece` keys by themselves, even ones and odd ones in a sum of their own, then the pieces'
    sums in their order, and at last those of `cut` keys each, on any machine. Weights likewise, but one by one."""

    def attention(
        query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, attn_mask: Any, scale: Any = None, **_: Any
    ) -> Any:
        weights = attention_weights(query, keys, attn_mask, scale)
        parts = []
        for first in range(0, keys.shape[2], cut):
            some = weights[..., first : first + cut]
            of_these = values[:, :, first : first + cut].float()
            sums = [torch.zeros(*some.shape[:3], -(-some.shape[3] // piece), of_these.shape[3]) for _ in range(2)]
            for place in range(piece):
                weight, value = some[..., place::piece, None], of_these[:, :, None, place::piece]
                sums[place % 2][..., : weight.shape[3], :] += weight * value
            out = (sums[0] + sums[1]).cumsum(dim=-2)[..., -1, :]
            parts.append(torch.cat([out, some.cumsum(dim=-1)[..., -1:]], dim=-1))
        found = sum(parts)
        return (found[..., :-1] / found[..., -1:]).to(query.dtype)

    return attention


def attention_with_sums(num_sums: int) -> Any:
    """Attention that adds up its weights by vectors of 16, in turn into so many sums, on any machine."""

    def attention(
        query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, attn_mask: Any, scale: Any = None, **_: Any
    ) -> Any:
        weights = attention_weights(query, keys, attn_mask, scale)
        # In float64 a sum of few numbers of bfloat16 and float32 has one value in any order.
        out = (weights.double() @ values.double()).float()
        sums = torch.zeros(*weights.shape[:3], num_sums, 16)
        for part in weights.split(16 * num_sums, dim=-1):
            sums = sums + part.unflatten(-1, (num_sums, 16))
        total = sums.cumsum(dim=-2)[..., -1, :].cumsum(dim=-1)[..., -1:]
        return (out / total).to(query.dtype)

    return attention
