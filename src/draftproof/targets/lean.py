"""Decoder layers of Llama's shape, run from their weights: the calls that the arithmetic needs, and no others.

transformers' own code of such a layer makes some forty calls of the device and, on the host, as many microseconds of
Python as a narrow forward takes. Here a layer is four matrix products (queries, keys and values joined; gate and up
joined), two norms, attention and the gate. The weights stay the model's: joined weights are one tensor, of which the
model's own modules hold views.

Only the families below are run so, whose code in transformers is known to do nothing else, and only where the modules
found are those that the code here expects. `selfcheck.py` compares the logits with the model's own besides.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import nn

from draftproof.targets.fused import FamilyPart
from draftproof.targets.norms import Norm
from draftproof.targets.products import PRODUCTS
from draftproof.targets.static.operations import Heads, Operations

FAMILIES: Final = {
    f"transformers.models.{family.lower()}.modeling_{family.lower()}.{family}ForCausalLM"
    for family in ("Llama", "Mistral", "Qwen2", "Qwen3")
}
ATTENTION_PARTS: Final = {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"}
MLP_PARTS: Final = {"gate_proj", "up_proj", "down_proj", "act_fn"}
ACTIVATIONS: Final = {"SiLU", "SiLUActivation"}
LAYER_PARTS: Final = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}

KINDS: Final = (nn.Linear, *PRODUCTS, FamilyPart)


class Memory(Protocol):
    """The cache, as one forward sees it."""

    def mix(
        self, layer: int, joined: torch.Tensor, heads: Heads, cos: torch.Tensor, sin: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """joined [tokens, (heads + 2 · kv_heads) · dim]: write keys and values, return [tokens, heads · dim]."""
        ...


@dataclass(frozen=True, slots=True)
class LeanLayer:
    """One layer's weights."""

    before: Norm
    joined: nn.Module
    heads: Heads
    scale: float
    out: nn.Module
    between: Norm
    gate_up: nn.Module
    down: nn.Module


class LeanDecoder:
    """The layers of a model from embedding to final norm."""

    def __init__(self, decoder: Any, layers: list[LeanLayer], norm: Norm, operations: Operations) -> None:
        self._decoder, self._layers, self._norm, self._operations = decoder, layers, norm, operations

    @classmethod
    def of(cls, model: Any, operations: Operations) -> LeanDecoder | None:
        """None where the model isn't of that shape. Joins the model's weights."""
        if f"{type(model).__module__}.{type(model).__qualname__}" not in FAMILIES:
            return None
        if model.dtype == torch.float64 or any(_is_changed(module) for module in model.modules()):
            # In float64 the model's own norms round to float32.
            return None
        decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.base_model
        blocks, norm, rotary = (getattr(decoder, name, None) for name in ("layers", "norm", "rotary_emb"))
        if blocks is None or norm is None or rotary is None or not _is_norm(norm):
            return None
        if not all(_fits(block) for block in blocks):
            return None
        return cls(decoder, [_layer_of(block) for block in blocks], _norm_of(norm), operations)

    @property
    def products(self) -> list[nn.Module]:
        """The products that the model itself hasn't got."""
        return [product for layer in self._layers for product in (layer.joined, layer.gate_up)]

    def run(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        memory: Memory,
        num_layers: int,
        see: Callable[[int, torch.Tensor], None] | None = None,
        count: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """ids, positions [tokens] to the final norm's output [tokens, hidden size].

        num_layers: the first so many are run. see: given (k, hidden_states[k]), as transformers counts them. count: of
        `Operations`.
        """
        residual = self._decoder.embed_tokens(ids)
        cos, sin = (part[0] for part in self._decoder.rotary_emb(residual[None], positions[None]))
        operations, layers = self._operations, self._layers[:num_layers]
        norms = [*(layer.before for layer in layers), self._norm]
        normed = operations.add_norm(residual, None, norms[0], count)
        for index, (layer, after) in enumerate(zip(layers, norms[1:], strict=True)):
            if see is not None:
                see(index, residual)
            attended = memory.mix(index, layer.joined(normed), layer.heads, cos, sin, layer.scale)
            normed = operations.add_product_norm(residual, layer.out, attended, layer.between, count)
            gated = operations.gated(layer.gate_up, normed, count)
            normed = operations.add_product_norm(residual, layer.down, gated, after, count)
        if see is not None:
            see(num_layers, normed)
        return normed


def _is_changed(module: nn.Module) -> bool:
    """Has somebody put a forward of their own, or hooks, on the module?"""
    return "forward" in vars(module) or bool(module._forward_hooks) or bool(module._forward_pre_hooks)


def _is_norm(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, torch.Tensor) and weight.dim() == 1 and isinstance(_eps_of(module), float)


def _eps_of(module: Any) -> Any:
    return getattr(module, "variance_epsilon", getattr(module, "eps", None))


def _norm_of(module: Any) -> Norm:
    return Norm(module.weight.detach(), _eps_of(module))


def _fits(block: Any) -> bool:
    attention, mlp = getattr(block, "self_attn", None), getattr(block, "mlp", None)
    if attention is None or mlp is None or {name for name, _ in block.named_children()} != LAYER_PARTS:
        return False
    if not {name for name, _ in attention.named_children()} <= ATTENTION_PARTS:
        return False
    if {name for name, _ in mlp.named_children()} - {"act_fn"} != MLP_PARTS - {"act_fn"}:
        return False
    linears: list[Any] = [getattr(attention, name, None) for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
    linears += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    if not all(type(linear) in KINDS for linear in linears):
        return False
    if not _alike(linears[:3]) or not _alike([mlp.gate_proj, mlp.up_proj]):
        return False
    if type(mlp.act_fn).__name__ not in ACTIVATIONS:
        return False
    norms: list[Any] = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    if (norms[0] is None) != (norms[1] is None) or not all(norm is None or _is_norm(norm) for norm in norms):
        return False
    head_dim = getattr(attention, "head_dim", None)
    scaled = isinstance(getattr(attention, "scaling", None), float)
    return scaled and isinstance(head_dim, int) and _is_norm(block.input_layernorm) and _norm_fits(norms, head_dim)


def _alike(linears: list[Any]) -> bool:
    """Can they be one product?"""
    first = linears[0]
    if type(first) is FamilyPart:
        return all(type(linear) is FamilyPart and linear.family is first.family for linear in linears)
    biased = [linear.bias is not None for linear in linears if type(linear) is nn.Linear]
    return biased in ([True] * len(linears), [False] * len(linears))


def _norm_fits(norms: list[Any], head_dim: int) -> bool:
    return all(norm is None or norm.weight.shape[0] == head_dim for norm in norms)


def _layer_of(block: Any) -> LeanLayer:
    attention, mlp = block.self_attn, block.mlp
    dim = int(attention.head_dim)
    query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    heads = Heads(
        attention.q_proj.out_features // dim,
        attention.k_proj.out_features // dim,
        dim,
        None if query_norm is None else _norm_of(query_norm),
        None if key_norm is None else _norm_of(key_norm),
    )
    return LeanLayer(
        before=_norm_of(block.input_layernorm),
        joined=_joined([attention.q_proj, attention.k_proj, attention.v_proj]),
        heads=heads,
        scale=float(attention.scaling),
        out=attention.o_proj,
        between=_norm_of(block.post_attention_layernorm),
        gate_up=_joined([mlp.gate_proj, mlp.up_proj]),
        down=mlp.down_proj,
    )


def _joined(linears: list[Any]) -> nn.Module:
    """One product for several linear layers, whose weights become views of the joined one."""
    if type(linears[0]) is FamilyPart:
        return linears[0].family.product
    weight = torch.cat([linear.weight.detach() for linear in linears])
    bias = None if linears[0].bias is None else torch.cat([linear.bias.detach() for linear in linears])
    sizes = [linear.out_features for linear in linears]
    for linear, part in zip(linears, torch.split(weight, sizes), strict=True):
        linear.weight = nn.Parameter(part, requires_grad=False)
    joined: nn.Linear = copy(linears[0])
    joined.out_features = weight.shape[0]
    joined._parameters = {
        "weight": nn.Parameter(weight, requires_grad=False),
        "bias": None if bias is None else nn.Parameter(bias, requires_grad=False),
    }
    return joined
