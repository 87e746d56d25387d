"""Attention's order of keys, as kernels are asked for it: other orders are found, and where keys may stand."""

from typing import Any

import pytest
import torch

from draftproof.targets import key_order, packed
from draftproof.targets.branches import Room
from draftproof.targets.hf import HFTarget
from draftproof.targets.shapes import QUERY_STEPS
from tests.targets.models import attention_in_blocks, attention_in_pieces, attention_with_sums, tiny_model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("wrong", ["few queries", "several segments"])
def test_attention_that_sums_otherwise_is_found(monkeypatch, dtype: torch.dtype, wrong: str) -> None:
    target = HFTarget(tiny_model("llama", dtype))
    real = packed.scaled_dot_product_attention

    def attention(query, keys, values, attn_mask, **kwargs):
        differs = len(keys) > 1 if wrong == "several segments" else query.shape[2] <= 8
        if differs:
            keys, values, attn_mask = keys.flip(2), values.flip(2), attn_mask.flip(3)
        return real(query, keys, values, attn_mask=attn_mask, **kwargs)

    assert target.attention_agrees(QUERY_STEPS[-1])
    monkeypatch.setattr(packed, "scaled_dot_product_attention", attention)
    assert not target.attention_agrees(QUERY_STEPS[-1])


def spreads(target: HFTarget, chain: int, key_length: int, stop: int) -> bool:
    return key_order.spreads(target._layers, target.model.config.num_attention_heads, chain, Room(key_length, stop))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("block", [64, 80, 128, 512])
def test_where_sums_are_cut_into_blocks_is_found(monkeypatch, block: int, dtype: torch.dtype) -> None:
    """Nothing is spread across the beginning of a block, and chains of 256 keys are moved from key 128 on."""
    target = HFTarget(tiny_model("llama", dtype))
    monkeypatch.setattr(packed, "scaled_dot_product_attention", attention_in_blocks(block))
    for stop in (256, 320):
        assert spreads(target, 256, 320, stop) == (128 // block == (stop - 1) // block)
    assert spreads(target, 64, 128, 128) == (block >= 128)


@pytest.mark.parametrize(
    "chain, key_length, same", [(64, 192, True), (192, 256, False), (256, 256, True), (320, 384, False)]
)
def test_how_many_keys_are_read_may_decide_where_blocks_begin(
    monkeypatch, chain: int, key_length: int, same: bool
) -> None:
    """As oneDNN cuts them: into as few blocks of up to 192 as it takes, of one size."""

    def attention(query: torch.Tensor, keys: torch.Tensor, *others: Any, **named: Any) -> Any:
        num_keys = keys.shape[2]
        return attention_in_blocks(-(-num_keys // -(-num_keys // 192)))(query, keys, *others, **named)

    target = HFTarget(tiny_model("llama", torch.bfloat16))
    monkeypatch.setattr(packed, "scaled_dot_product_attention", attention)
    assert spreads(target, chain, key_length, chain) == same


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("num_sums", [1, 2, 4])
@pytest.mark.parametrize("stride", [16, 32, 64])
def test_in_how_many_sums_weights_are_added_up_is_found(
    monkeypatch, num_sums: int, stride: int, dtype: torch.dtype
) -> None:
    """Vectors of 16 weights go into so many sums in turn: a move is the same where it ends in the sum it began in.
    Branches were once moved by 16 columns, which no sum that cancels shows to be another order."""
    target = HFTarget(tiny_model("llama", dtype))
    monkeypatch.setattr(packed, "scaled_dot_product_attention", attention_with_sums(num_sums))
    monkeypatch.setattr(key_order, "STRIDE", stride)
    for chain, key_length in ((64, 192), (256, 320)):
        assert spreads(target, chain, key_length, key_length) == (stride % (16 * num_sums) == 0)


def moves(target: HFTarget, chain: int, most: int, num_before: int = 0) -> int:
    num_heads = target.model.config.num_attention_heads
    return key_order.moves_blocks(target._layers, num_heads, chain, most, num_before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("piece, same", [(16, True), (32, True), (24, False), (64, False), (512, True)])
def test_whole_blocks_may_move_where_they_are_added_up_by_themselves(
    monkeypatch, piece: int, same: bool, dtype: torch.dtype
) -> None:
    """As tile products do, by 32; or where nothing is added up by itself. Single keys move in the last case alone."""
    target = HFTarget(tiny_model("llama", dtype))
    monkeypatch.setattr(packed, "scaled_dot_product_attention", attention_in_pieces(piece))
    for chain in (64, 128):
        assert (moves(target, chain, 192) == 192) == same
    assert spreads(target, 64, 128, 128) == (piece == 512)


def test_no_block_moves_across_a_cut(monkeypatch) -> None:
    """Blocks' sums may be cut into parts in turn, as flash attention does at 512 keys."""
    target = HFTarget(tiny_model("llama", torch.bfloat16))
    monkeypatch.setattr(packed, "scaled_dot_product_attention", attention_in_pieces(32, cut=192))
    assert [moves(target, chain, 384) for chain in (64, 128, 192, 256)] == [192, 192, 192, 384]
    assert moves(target, 128, 192, 1) == 192 and moves(target, 256, 384, 1) == 0


@pytest.mark.parametrize("num_sums, same", [(1, True), (2, True), (4, False)])
def test_blocks_are_found_to_change_sums_of_weights(monkeypatch, num_sums: int, same: bool) -> None:
    target = HFTarget(tiny_model("llama", torch.bfloat16))
    monkeypatch.setattr(packed, "scaled_dot_product_attention", attention_with_sums(num_sums))
    assert (moves(target, 64, 192) == 192) == same
