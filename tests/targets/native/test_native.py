"""Products and attention in machine code: what they compute, that no row looks at another, and that faults show."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from draftproof import LLM, SamplingParams
from draftproof.errors import ModelError
from draftproof.targets import products
from draftproof.targets.base import ScoreRequest
from draftproof.targets.cpu_linear import PackedLinear
from draftproof.targets.fused import fuse_projections
from draftproof.targets.half_linear import HalfLinear
from draftproof.targets.hf import HFTarget
from draftproof.targets.native import attention as row_attention
from draftproof.targets.native import compiled, turning
from draftproof.targets.native.attention import RowAttention
from draftproof.targets.native.attention_ir import attention_ir
from draftproof.targets.native.operations import NativeOperations
from draftproof.targets.native.pointwise_ir import pointwise_ir
from draftproof.targets.native.product_ir import product_ir
from draftproof.targets.native.turning_ir import turning_ir
from draftproof.targets.norms import Norm
from draftproof.targets.products import pack_linears, product_kind
from draftproof.targets.shapes import FixedShapes, RowShapes
from draftproof.targets.static.operations import Heads, TorchOperations, Turning
from draftproof.targets.streamed_linear import StreamedLinear
from tests.targets.models import plain_logits, random_ids, score_one, tiny_model
from tests.targets.native.checks import (
    cached,
    check_attention,
    check_exponential,
    check_gate,
    check_norm,
    check_product,
    check_scores,
    check_turning,
    needs_native,
    random,
)

CPU = torch.device("cpu")
HEADS = ((3, 3, 64), (2, 7, 128), (4, 1, 32), (1, 16, 16), (2, 4, 96), (1, 5, 256))


@needs_native
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", [(960, 576), (37, 64), (5, 7), (100, 33), (1, 1), (16, 2)])
def test_a_product_is_that_of_the_weights_for_any_number_of_rows(shape: tuple[int, int], biased: bool) -> None:
    check_product(*shape, biased=biased)


@needs_native
def test_the_threads_of_pytorch_share_the_work_and_change_no_bit() -> None:
    layer, features, num_threads = (
        StreamedLinear(random(1000, 64), None),
        random(9, 64, seed=2),
        torch.get_num_threads(),
    )
    found = []
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            found.append(layer(features))
    finally:
        torch.set_num_threads(num_threads)
    assert all(torch.equal(found[0], other) for other in found[1:])
    results: list[torch.Tensor] = []
    others = [threading.Thread(target=lambda: results.append(layer(features))) for _ in range(4)]
    for thread in others:
        thread.start()
    for thread in others:
        thread.join()
    assert len(results) == 4 and all(torch.equal(found[0], other) for other in results)


@needs_native
def test_numbers_that_are_none_stay_in_their_row_and_column() -> None:
    weight, features = random(40, 64), random(3, 64, seed=2)
    weight[7, 3], features[1, 5] = float("nan"), float("inf")
    found = StreamedLinear(weight, None)(features)
    assert found[:, 7].isnan().all() and not found[1].isfinite().any()
    assert found[::2, [index for index in range(40) if index != 7]].isfinite().all()


@needs_native
@pytest.mark.parametrize("starts", [(201, 83), (0, 0), (600, 3)])
@pytest.mark.parametrize("heads", HEADS)
def test_attention_adds_up_what_a_query_sees(heads: tuple[int, int, int], starts: tuple[int, int]) -> None:
    check_attention(*heads, starts=starts)


@needs_native
def test_weights_are_a_softmax() -> None:
    check_scores()
    check_exponential()


@needs_native
@pytest.mark.parametrize("width", [16, 576, 1536])
def test_what_lies_between_products(width: int) -> None:
    check_norm(width)
    check_gate(width)


@needs_native
@pytest.mark.parametrize("heads", [(9, 3, 64), (4, 4, 32), (2, 1, 128)])
def test_heads_are_turned_and_written(heads: tuple[int, int, int]) -> None:
    check_turning(*heads)


@needs_native
def test_what_is_not_turned_in_machine_code() -> None:
    def angles(dim: int, dtype: torch.dtype = torch.bfloat16) -> Turning:
        return Turning.of(torch.ones(2, dim, dtype=dtype), torch.ones(2, dim, dtype=dtype))

    norm, plain = Norm(torch.ones(32).bfloat16(), 1e-5), Heads(2, 1, 32, None, None)
    assert turning.fits(random(2, 128), plain, angles(32))
    assert not turning.fits(random(2, 128).float(), plain, angles(32))
    assert not turning.fits(random(2, 128), plain, angles(32, torch.float32))
    assert not turning.fits(random(128, 2).T, plain, angles(32))
    assert not turning.fits(random(2, 192), Heads(2, 1, 48, None, None), angles(48))
    assert not turning.fits(random(2, 128), Heads(2, 1, 32, norm, norm), angles(32))


@needs_native
def test_a_forward_is_the_same_with_pytorchs_turning(monkeypatch) -> None:
    """Chains, trees, several requests and padding: logits, and what later passes read of the cache."""

    def logits() -> list[torch.Tensor]:
        target = HFTarget(bf16_model(head_dim=32), num_slots=2, invariant=False)
        found = target.score([ScoreRequest(0, (1, 2, 3, 4, 5)), ScoreRequest(1, (9, 8, 7))])
        found += target.score([ScoreRequest(0, (4, 5, 6, 7), parents=(-1, 0, 0, 1))])
        target.rewind(0, 6, (0, 2))
        return [*found, *target.score([ScoreRequest(1, (3,)), ScoreRequest(0, (2, 2))])]

    turned = []
    monkeypatch.setattr(turning, "turn", lambda *given, turn=turning.turn: turned.append(1) or turn(*given))
    ours = logits()
    assert turned
    monkeypatch.setattr(turning, "fits", lambda *_: False)
    assert all(torch.equal(own, other) for own, other in zip(ours, logits(), strict=True))


@needs_native
def test_other_rows_are_left_to_pytorch() -> None:
    """Widths of no whole vectors, other dtypes, and what isn't contiguous."""
    native, pytorch = NativeOperations(), TorchOperations()
    for joined in (random(3, 20), random(3, 64).float(), random(64, 3).T, random(0, 32)):
        assert torch.equal(native.gate(joined), pytorch.gate(joined))
    for states in (random(3, 24), random(3, 32).float(), random(32, 3).T):
        norm = Norm(torch.ones(states.shape[1], dtype=states.dtype), 1e-5)
        ours, others = states.clone(), states.clone()
        added = random(*states.shape, seed=4).to(states.dtype)
        assert torch.equal(native.add_norm(ours, added, norm), pytorch.add_norm(others, added, norm))
        assert torch.equal(ours, others)


@needs_native
def test_what_has_another_dtype_or_size_is_refused() -> None:
    """Its memory would be read as something else."""
    layer = StreamedLinear(random(4, 8), None)
    for features in (random(2, 8).float(), random(2, 6)):
        with pytest.raises(ModelError, match="takes torch.bfloat16 of 8"):
            layer(features)
    with pytest.raises(ModelError, match="not in torch.float32"):
        StreamedLinear(random(4, 8).float(), None)
    attend = RowAttention(cached(1, 16, 16, [0]), [ScoreRequest(0, (0,))], [3], 1)
    for query in (random(1, 1, 16).float(), random(2, 1, 16)):
        with pytest.raises(ModelError, match="keys in torch.bfloat16"):
            attend(1, query, None, 0.0)


@needs_native
def test_attention_has_no_dropout() -> None:
    attend = RowAttention(cached(1, 16, 16, [0]), [ScoreRequest(0, (0,))], [3], 1)
    with pytest.raises(ModelError, match="dropout"):
        attend(1, random(1, 1, 16), None, 0.1)


def check_products() -> None:
    check_product(40, 576, biased=True)


def check_pointwise() -> None:
    check_norm(576)
    check_gate(576)


def check_attentions() -> None:
    check_attention(3, 3, 64)
    check_scores()
    check_exponential()


PRODUCT_FAULTS = {
    "no bias": ("fadd <16 x float> %sum0.2, %b", "fadd <16 x float> %sum0.2, zeroinitializer"),
    "another row's features": (
        "%at1.0 = getelementptr i8, ptr %row, i64 1152",
        "%at1.0 = getelementptr i8, ptr %row, i64 0",
    ),
    "pairs are left out": ("icmp ult i64 %pair.next, 288", "icmp ult i64 %pair.next, 286"),
    "a column isn't written": ("%ones = sub i64 %power, 1", "%ones = sub i64 %power, 2"),
    "blocks that no thread has": ("%until = add i64 %before, %num_blocks", "%until = add i64 %before, 1"),
    "rows between parts": ("%row.next = add i64 %row, %part", "%row.next = add i64 %row, 27"),
}
ATTENTION_FAULTS = {
    "all see what some see": ("%o.any, <16 x float> %unseen", "%o.any, <16 x float> %o.any"),
    "what is unseen counts among the largest": ("fcmp ogt <16 x float> %o.score", "fcmp ogt <16 x float> %o.any"),
    "no largest score": ("fsub <16 x float> %e.score, %most.own", "fsub <16 x float> %e.score, zeroinitializer"),
    "a rough exponential": ("<16 x float> %c3)", "<16 x float> zeroinitializer)"),
    "what is no number is left out": ("fcmp uge <16 x float> %x", "fcmp oge <16 x float> %x"),
    "the last column is left out": ("%num_keys = add i64 %num_shared, %num_own\n  br label %large",
                                    "%num_keys = sub i64 %num_shared, 1\n  br label %large"),
    "masks of the block before": ("ptr %masks.now, i64 %num_own\n  %block.next",
                                  "ptr %masks.now, i64 0\n  %block.next"),
    "the first head's keys": ("%k.head = mul i64 %head, %key_stride", "%k.head = mul i64 0, %key_stride"),
    "scores and no weights": ("store <16 x float> %p, ptr %e.at", "store <16 x float> %x, ptr %e.at"),
    "heads that no thread has": ("icmp eq i64 %whose, %thread", "icmp eq i64 %whose, 0"),
    "other columns": ("%c.off = mul i64 %column, 128", "%c.off = mul i64 %column, 126"),
}  # fmt: skip

POINTWISE_FAULTS = {
    "nothing is added": ("%adds = icmp ne ptr %added, null", "%adds = icmp eq ptr %added, %residual"),
    "the sum isn't rounded": ("phi <16 x float> [%x, %squares], [%xa.again, %adding]",
                              "phi <16 x float> [%x, %squares], [%x, %adding]"),
    "no eps": ("%above = fadd float %mean, %eps", "%above = fadd float %mean, 0.0"),
    "a norm of sums": ("fdiv float %total, %size", "fadd float %total, 0.0"),
    "no weight": ("fmul <16 x float> %normed, %w", "fmul <16 x float> %normed, %scale"),
    "the gate by itself": ("fmul <16 x float> %silu.again, %u", "fmul <16 x float> %silu.again, %ones"),
    "silu that isn't rounded": ("fmul <16 x float> %silu.again, %u", "fmul <16 x float> %silu, %u"),
    "no bound of exponents": ("fcmp ogt <16 x float> %power.any, %most", "fcmp ogt <16 x float> %most, %most"),
}  # fmt: skip


TURNING_FAULTS = {
    "no sum": ("fadd <16 x float> %low.first.again, %low.second", "fadd <16 x float> %low.second, %low.second"),
    "a first product that isn't rounded": ("fadd <16 x float> %high.first.again", "fadd <16 x float> %high.first"),
    "halves that aren't swapped": ("fmul <16 x float> %x.high, %low.sin", "fmul <16 x float> %x.low, %low.sin"),
    "the first token's angles": ("%in.angles = mul i64 %token, %dim", "%in.angles = mul i64 0, %dim"),
    "values that are turned": ("%is_value = icmp uge i64 %head, %turned", "%is_value = icmp ugt i64 %head, %turned"),
    "one column for all": ("getelementptr i64, ptr %columns, i64 %token", "getelementptr i64, ptr %columns, i64 0"),
    "padding that is written": ("%is_written = icmp ult i64 %token, %num_written",
                                "%is_written = icmp ule i64 %token, %num_written"),
    "one head's keys for all": ("%key.place = mul i64 %key, %by_key_head", "%key.place = mul i64 0, %by_key_head"),
    "tokens that no thread has": ("%token.next = add i64 %token, %num_threads", "%token.next = add i64 %token, 3"),
}  # fmt: skip
FAULTS = {
    "product_ir": PRODUCT_FAULTS,
    "attention_ir": ATTENTION_FAULTS,
    "pointwise_ir": POINTWISE_FAULTS,
    "turning_ir": TURNING_FAULTS,
}


@pytest.fixture
def two_threads() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(num_threads)


def clear() -> None:
    compiled.product.cache_clear()
    compiled.attention.cache_clear()
    compiled.pointwise.cache_clear()
    compiled.turning.cache_clear()


@needs_native
@pytest.mark.parametrize("kind, name", [(kind, name) for kind, faults in FAULTS.items() for name in faults])
def test_faults_in_the_machine_code_show(monkeypatch, two_threads, kind: str, name: str) -> None:
    text, sizes, check = {
        "product_ir": (product_ir, (288,), check_products),
        "attention_ir": (attention_ir, (3, 3, 64), check_attentions),
        "pointwise_ir": (pointwise_ir, (), check_pointwise),
        "turning_ir": (turning_ir, (), partial(check_turning, 9, 3, 64)),
    }[kind]
    assert FAULTS[kind][name][0] in text(*sizes)
    monkeypatch.setattr(compiled, kind, partial(_changed, text, FAULTS[kind][name]))
    clear()
    try:
        with pytest.raises(AssertionError):
            check()
    finally:
        clear()


def _changed(text: Callable[..., str], fault: tuple[str, str], *arguments: int) -> str:
    return text(*arguments).replace(*fault)


@needs_native
def test_a_tree_that_sees_siblings_shows(monkeypatch) -> None:
    monkeypatch.setattr(row_attention, "_seen", lambda parents: np.tri(len(parents), dtype=np.bool_))
    with pytest.raises(AssertionError):
        check_attention(3, 3, 64)


@needs_native
@pytest.mark.parametrize("heads", HEADS)
def test_both_compile_for_any_processor_that_has_the_instructions(heads: tuple[int, int, int]) -> None:
    """Without what the machine at hand has besides."""
    assert "vdpbf16ps" in assembled(attention_ir(*heads))
    assert "vdpbf16ps" in assembled(product_ir(heads[2]))
    assert "vcvtneps2bf16" in assembled(pointwise_ir())
    assert "vcvtneps2bf16" in assembled(turning_ir())


def assembled(text: str) -> str:
    llvm = pytest.importorskip("llvmlite.binding", reason="needs llvmlite")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    features = ",".join(f"+{flag.replace('_', '')}" for flag in sorted(compiled.FLAGS))
    target = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    module = llvm.parse_assembly(text)
    module.verify()
    found: str = target.create_target_machine(cpu="x86-64-v4", features=features, opt=3).emit_assembly(module)
    return found


def bf16_model(name: str = "llama", **changes: Any) -> Any:
    model = tiny_model(name, torch.bfloat16, **changes)
    fuse_projections(model, StreamedLinear)
    pack_linears(model, StreamedLinear)
    return model


@needs_native
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_target_computes_what_its_model_computes(name: str) -> None:
    token_ids = random_ids(90)
    want = plain_logits(tiny_model(name, head_dim=32), token_ids)
    target = HFTarget(bf16_model(name, head_dim=32))
    assert target.attends_by_row and target.num_branches(0, 3) is None
    target.prefill(0, token_ids[:13])
    found = score_one(target, 0, token_ids[13:]).float()
    scale = want.abs().max()
    assert (found - want[13:]).abs().max() < 0.06 * scale
    unrounded = plain_logits(tiny_model(name, torch.bfloat16, head_dim=32), token_ids).float()
    assert (found - want[13:]).abs().mean() < 1.5 * (unrounded[13:] - want[13:]).abs().mean()


@needs_native
@pytest.mark.parametrize("changes", [{"head_dim": 8}, {"head_dim": 32, "name": "gemma3"}, {"dtype": torch.float32}])
def test_others_are_attended_as_before(changes: dict[str, Any]) -> None:
    """Heads of no whole vectors, windows, other dtypes."""
    settings = {"name": "llama", "dtype": torch.bfloat16, "head_dim": 32} | changes
    target = HFTarget(tiny_model(**settings), invariant=True)
    assert not target.attends_by_row and not isinstance(target.shapes, RowShapes)


@needs_native
def test_invariant_execution_takes_as_many_tokens_and_keys_as_there_are() -> None:
    target = HFTarget(bf16_model(head_dim=32), num_slots=2, invariant=True, width=80)
    assert type(target.shapes) is RowShapes and target.shapes.name == "rows by themselves"
    assert not target.keeps_branches_in_place and target.room(0) == target.max_model_len
    parents = (-1, 0, 0, 1, 2, 2, 0, 6, 7, 7)
    text, nodes = random_ids(300), random_ids(len(parents), seed=5)
    for start in (1, 63, 64, 200, 255, 256):
        for slot in range(2):
            target.release(slot)
            target.prefill(slot, text[: start + 3 * slot])
        requests = [ScoreRequest(slot, tuple(nodes), parents) for slot in range(2)]
        rows, path = target.score(requests)[0], [0, 6, 7, 9]
        target.rewind(0, start + len(path), path)
        after = score_one(target, 0, [3, 5])
        target.release(0)
        target.prefill(0, text[:start])
        chain = [score_one(target, 0, [token]) for token in [*(nodes[node] for node in path), 3, 5]]
        assert torch.equal(torch.cat([rows[path], after]), torch.cat(chain)), start


@needs_native
def test_texts_are_those_without_speculation() -> None:
    target = HFTarget(bf16_model(head_dim=32), num_slots=2, invariant=True, width=80)
    prompts = [random_ids(12, seed=seed) for seed in range(4)]
    params = [
        SamplingParams(seed=seed, max_tokens=60, temperature=0.3 * seed, detokenize=False)
        for seed in range(len(prompts))
    ]
    chain = {"method": "ngram", "num_speculative_tokens": 6, "draft_length": "fixed", "prompt_lookup_min": 1}
    tree = {"method": "suffix", "topology": "tree", "num_tree_nodes": 24, "draft_length": "fixed"}
    texts = [
        [output.outputs[0].token_ids for output in LLM.from_target(target, None, **given).generate(prompts, params)]
        for given in ({}, {"speculative_config": chain}, {"speculative_config": tree})
    ]
    assert texts[0] == texts[1] == texts[2] and all(len(ids) == 60 for ids in texts[0])


@needs_native
def test_rows_that_look_at_others_are_seen_by_the_probe(monkeypatch) -> None:
    """Of attention that adds up in another order where there are many queries; the next policy is tried."""
    real = RowAttention.__call__

    def looks(self: RowAttention, layer: int, query: torch.Tensor, scale: float | None, dropout: float) -> torch.Tensor:
        out = real(self, layer, query, scale, dropout)
        return out if len(query) < 9 else out * (1 + 2**-7)

    monkeypatch.setattr(RowAttention, "__call__", looks)
    target = HFTarget(bf16_model(head_dim=32), invariant=True)
    assert type(target.shapes) is FixedShapes


def test_which_products_run_is_a_rule_of_the_machine(monkeypatch) -> None:
    for runs, dtype, halves, kind in (
        (True, torch.bfloat16, False, StreamedLinear),
        (True, torch.float32, True, HalfLinear),
        (False, torch.bfloat16, False, PackedLinear),
    ):
        monkeypatch.setattr(compiled, "available", lambda runs=runs: runs)
        monkeypatch.setattr(products, "should_pack", lambda *_: True)
        assert product_kind(dtype, CPU, invariant=True, halves=halves) is kind
    monkeypatch.setattr(compiled, "available", lambda: True)
    assert product_kind(torch.bfloat16, torch.device("cuda"), invariant=True, halves=False) is PackedLinear


@pytest.mark.parametrize(
    ("flags", "threads", "runs"),
    [
        ({"amx_bf16"}, True, False),
        (set(), False, False),
        ({"less": "avx512_bf16"}, True, False),
    ],
)
def test_where_it_does_not_run(monkeypatch, flags: Any, threads: bool, runs: bool) -> None:
    has = set(compiled.FLAGS) | set(flags) if isinstance(flags, set) else compiled.FLAGS - set(flags.values())
    monkeypatch.setattr(compiled, "cpu_flags", lambda: frozenset(has))
    monkeypatch.setattr(compiled, "_threads", lambda: object() if threads else None)
    assert compiled.available.__wrapped__() is runs


@needs_native
def test_a_compiler_that_refuses_is_told_of_and_done_without(monkeypatch) -> None:
    def refuses(*_: Any) -> str:
        return "this is no module"

    monkeypatch.setattr(compiled, "product_ir", refuses)
    clear()
    try:
        with pytest.warns(RuntimeWarning, match="since LLVM refuses"):
            assert compiled.available.__wrapped__() is False
    finally:
        clear()
