"""The network that DFlash, DFlash 2 and DSpark share: a few layers over one block, with the target's features as keys.

For a block that begins at absolute position s (the anchor, the newest committed token):
    features_j  = hidden_norm(fc([taps of position j]))                                for every j < s
    block       = embedding of [anchor, mask, mask, …], at positions s, s + 1, …
    each layer  : queries from the block; keys and values from the features of all j < s (the same projections in
                  every layer's own weights) and from the block; full layers see the whole block, sliding ones see
                  keys less than `window` positions back; causal ones nothing behind the query
    hidden      = norm(block)                          logits = the target's output layer, scaled and capped
The features are never normed again by the layers, and a layer's context keys depend on the features alone: they are
made once for each committed position, and nothing that was drafted is ever kept.
Sources: z-lab/dflash 0.1.0 (MIT), DeepSpec (MIT); `layout.py` says what differs between packagings.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from draftproof.drafters.learned.backbone_config import BackboneConfig, rotary_embedding
from draftproof.drafters.learned.convolution import LocalConvolution
from draftproof.drafters.learned.domino import DominoHead
from draftproof.drafters.learned.layout import BlockLayout
from draftproof.drafters.learned.markov import ConfidenceHead, MarkovHead
from draftproof.drafters.learned.modules import MLP, Attend, Attention, Linear, RMSNorm, Rotation
from draftproof.drafters.learned.selector import CandidateSelector


class BlockLayer(nn.Module):
    """One decoder layer over a block [rows, block_size, hidden]."""

    def __init__(self, backbone: BackboneConfig, layout: BlockLayout) -> None:
        super().__init__()
        config = backbone.layer
        self.self_attn, self.mlp = Attention(config), MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.eps, config.norm_offset)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.eps, config.norm_offset)
        self.attention_conv: LocalConvolution | None = None
        self.mlp_conv: LocalConvolution | None = None
        if layout.conv_kernel_size:
            sizes = config.hidden_size, layout.conv_kernel_size, layout.conv_group_size
            self.attention_conv, self.mlp_conv = LocalConvolution(*sizes), LocalConvolution(*sizes)

    def forward(self, block: torch.Tensor, rotation: Rotation, attend: Attend) -> torch.Tensor:
        inner, kernels = _enter(self.attention_conv, self.input_layernorm(block))
        block = block + _leave(self.attention_conv, self.self_attn(inner, rotation, attend), kernels)
        inner, kernels = _enter(self.mlp_conv, self.post_attention_layernorm(block))
        return block + _leave(self.mlp_conv, self.mlp(inner), kernels)


def _enter(conv: LocalConvolution | None, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    return (features, None) if conv is None else conv.enter(features)


def _leave(conv: LocalConvolution | None, features: torch.Tensor, kernels: torch.Tensor | None) -> torch.Tensor:
    return features if conv is None or kernels is None else conv.leave(features, kernels)


class BlockModel(nn.Module):
    """The drafter's own weights; the target's embedding and output layer are handed in where they are used."""

    def __init__(self, backbone: BackboneConfig, layout: BlockLayout, target_hidden_size: int) -> None:
        super().__init__()
        self.backbone, self.layout = backbone, layout
        config, hidden = backbone.layer, backbone.layer.hidden_size
        self.fc = Linear(len(layout.tap_ids) * target_hidden_size, hidden)
        self.hidden_norm = RMSNorm(hidden, config.eps, config.norm_offset)
        self.layers = nn.ModuleList(BlockLayer(backbone, layout) for _ in range(backbone.num_layers))
        self.norm = RMSNorm(hidden, config.eps, config.norm_offset)
        vocab_size, draft_size = backbone.vocab_size, layout.draft_vocab_size or backbone.vocab_size
        self.lm_head = Linear(hidden, draft_size) if layout.has_own_head else None
        self.markov_head: MarkovHead | None = None
        self.confidence_head: ConfidenceHead | None = None
        self.candidate_selector: CandidateSelector | None = None
        self.domino: DominoHead | None = None
        if layout.markov_rank:
            self.markov_head = MarkovHead(layout.markov_type, vocab_size, draft_size, layout.markov_rank, hidden)
        if layout.has_confidence:
            extra = layout.markov_rank if layout.confidence_with_markov else 0
            self.confidence_head = ConfidenceHead(hidden + extra, layout.confidence_temperatures)
        if layout.selector_rank:
            self.candidate_selector = CandidateSelector(vocab_size, hidden, layout.selector_rank, layout.selector_top_k)
        if layout.domino_state_size:
            first = layout.domino_prefix + (0 if layout.anchor_first else 1)
            self.domino = DominoHead(hidden, layout.domino_state_size, layout.domino_rank, draft_size, first)
        self._rotary = (rotary_embedding(backbone),)  # in a tuple: no part of the checkpoint

    def rotation(self, like: torch.Tensor, positions: torch.Tensor) -> Rotation:
        """Cosines and sines of positions [rows, n], in the dtype and on the device of `like`."""
        rotary: Any = self._rotary[0]
        cosines, sines = rotary.to(like.device)(like, positions)
        return cosines, sines

    def context(self, taps: torch.Tensor) -> torch.Tensor:
        """[rows, n, taps * target hidden] to the features [rows, n, hidden]."""
        features: torch.Tensor = self.hidden_norm(self.fc(taps))
        return features

    def forward(self, block: torch.Tensor, rotation: Rotation, attends: list[Attend]) -> torch.Tensor:
        """block [rows, block_size, hidden]; attends: one per layer. Returns hidden states after the final norm."""
        for layer, attend in zip(self.layers, attends, strict=True):
            block = layer(block, rotation, attend)
        out: torch.Tensor = self.norm(block)
        return out

    def embed(self, table: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """Rows of the target's raw embedding table [V, hidden], scaled as the drafter was trained."""
        rows = nn.functional.embedding(token_ids, table)
        return rows if self.layout.embedding_scale == 1.0 else rows * self.layout.embedding_scale

    def scaled(self, logits: torch.Tensor) -> torch.Tensor:
        """What the output layer gave, multiplied and capped as the drafter was trained."""
        if self.layout.output_multiplier != 1.0:
            logits = logits * self.layout.output_multiplier
        cap = self.layout.logit_softcap
        return torch.tanh(logits / cap) * cap if cap else logits


def block_mask(
    starts: torch.Tensor, widths: torch.Tensor, key_length: int, window: int | None, causal: bool, dtype: torch.dtype
) -> torch.Tensor:
    """The additive mask [rows, 1, n, key_length] over a cache whose column j is position j; n: the widest block.

    starts [rows]: the anchors' positions; columns before them hold the context, the next widths[r] the row's block.
    """
    columns = torch.arange(key_length, device=starts.device)
    queries = starts[:, None] + torch.arange(int(widths.max()), device=starts.device)
    last = queries if causal else (starts + widths - 1)[:, None].expand_as(queries)
    seen = columns <= last[:, :, None]
    if window is not None:
        seen &= queries[:, :, None] - columns < window
        if not causal:
            seen &= columns - queries[:, :, None] < window
    mask = torch.zeros(seen.shape, dtype=dtype, device=starts.device)
    return mask.masked_fill_(~seen, torch.finfo(dtype).min)[:, None]
