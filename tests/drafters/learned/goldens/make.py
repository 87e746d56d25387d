"""Makes the golden files: tiny random checkpoints under real names, and what other packages' code computes with them.

Run once for each package, in an environment that has it (versions are written into the files):

    python -m tests.drafters.learned.goldens.make zlab          # pip install --no-deps dflash==0.1.0
    python -m tests.drafters.learned.goldens.make specforge     # pip install --no-deps specforge==0.2.0
    python -m tests.drafters.learned.goldens.make speculators   # pip install --no-deps speculators==0.9.0, and pydantic
    python -m tests.drafters.learned.goldens.make transformers

A file NAME.safetensors holds the drafter's weights (`weights.*`), the target's embedding and output layer, two
sequences (`ids.0`, `taps.0`, …) and for each sequence and step what the package computed: hidden states, logits,
greedy tokens.
Its metadata holds the config.json, the method, the steps (each a number of committed tokens) and the provenance.
No code of draftproof runs here.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

FOLDER = Path(__file__).parent
VOCAB, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 40, 16, 24, 4, 2, 4, 2
TARGET_LAYERS, BLOCK, MASK_ID, LENGTH = 6, 5, 39, 30
STEPS = (7, 8, 12, 13, 18, 24)
KEYS: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 256, "rope_theta": 10000.0, "attention_bias": False, "hidden_act": "silu",
}  # fmt: skip


def randomised(module: Any, seed: int) -> None:
    """Weights that bfloat16 holds exactly, so that the files are small and nothing is lost."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        values = 0.25 * torch.randn(parameter.shape, generator=generator)
        if "norm" in name and parameter.ndim == 1:
            values = 1.0 + 0.5 * values
        parameter.data = values.bfloat16().float()
    module.eval()


class Case:
    """One golden file in the making: two sequences, the target's ends, and what is added by name."""

    def __init__(self, name: str, method: str, config: dict[str, Any], num_taps: int, seed: int, package: str) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.name, self.method, self.config, self.package = name, method, config, package

        def draw(*shape: int) -> torch.Tensor:
            return (0.5 * torch.randn(*shape, generator=generator)).bfloat16().float()

        self.table, self.head = draw(VOCAB, HIDDEN), draw(VOCAB, HIDDEN)
        self.ids = [torch.randint(0, VOCAB - 1, (LENGTH + extra,), generator=generator) for extra in (0, 3)]
        self.taps = [draw(len(ids), num_taps * HIDDEN) for ids in self.ids]
        self.found: dict[str, torch.Tensor] = {}
        self.tokens: dict[str, list[int]] = {}

    def save(self, weights: dict[str, torch.Tensor], **extra: Any) -> None:
        exact = {k: v.bfloat16() if v.is_floating_point() else v for k, v in weights.items()}
        tensors = {f"weights.{name}": tensor.contiguous() for name, tensor in exact.items()}
        tensors |= {"table": self.table.bfloat16(), "head": self.head.bfloat16()}
        for index in range(2):
            tensors[f"ids.{index}"], tensors[f"taps.{index}"] = self.ids[index], self.taps[index].bfloat16()
        tensors |= {name: tensor.detach().float().contiguous() for name, tensor in self.found.items()}
        facts = {
            "config": self.config, "method": self.method, "steps": STEPS, "tokens": self.tokens,
            "made_with": {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
            | {"package": self.package}, **extra,
        }  # fmt: skip
        save_file(tensors, FOLDER / f"{self.name}.safetensors", metadata={"golden": json.dumps(facts)})
        print(self.name, (FOLDER / f"{self.name}.safetensors").stat().st_size)


def zlab() -> None:
    import dflash.model as package
    from transformers import Qwen3Config

    version = f"dflash {importlib.metadata.version('dflash')}"
    sliding = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6, "use_sliding_window": True}
    scalars = {"output_multiplier": 0.5, "final_logit_softcapping": 3.0, "input_embedding_scale": 2.0}
    cases: dict[str, tuple[dict[str, Any], bool]] = {
        "zlab_v1": ({}, False),
        "zlab_v1_sliding_scalars": (sliding | scalars, False),
        "zlab_v1_sliding_not_causal": (sliding | {"is_causal": False}, False),
        "zlab_v2": ({"conv_kernel_size": 2, "conv_group_size": 4, "selector_rank": 6, "selector_top_k": 5}, True),
    }
    for seed, (name, (fields, second)) in enumerate(cases.items()):
        config = KEYS | {
            "architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"], "model_type": "qwen3",
            "num_target_layers": TARGET_LAYERS, "block_size": BLOCK,
            "dflash_config": {"mask_token_id": MASK_ID, "target_layer_ids": [1, 3]}, **fields,
        }  # fmt: skip
        settings = Qwen3Config(**config)
        model = (package.DFlash2DraftModel if second else package.DFlashDraftModel)(settings)
        randomised(model, seed)
        case = Case(name, "dflash", config, 2, seed, version)
        head = torch.nn.Linear(HIDDEN, VOCAB, bias=False)
        head.weight.data = case.head
        scale = float(package._draft_value(settings, "input_embedding_scale", 1.0))
        with torch.no_grad():
            for index in range(2):
                cache, start = package._make_cache(settings), 0
                for step in STEPS:
                    anchor = step - 1
                    block = torch.full((1, BLOCK), MASK_ID)
                    block[0, 0] = case.ids[index][anchor]
                    hidden = model(
                        target_hidden=case.taps[index][None, start:anchor],
                        noise_embedding=torch.nn.functional.embedding(block, case.table) * scale,
                        position_ids=torch.arange(start, anchor + BLOCK)[None],
                        past_key_values=cache,
                        use_cache=True,
                    )
                    package._crop_to(cache, anchor)
                    start = anchor
                    logits = model.compute_logits(hidden[:, 1:], head)
                    case.found[f"hidden.{index}.{step}"], case.found[f"logits.{index}.{step}"] = hidden[0], logits[0]
                    tokens = logits[0].argmax(-1)
                    if second:
                        tokens = model.propose(hidden[:, 1:], block[:, 0], head, 0.0)[0][0]
                    case.tokens[f"{index}.{step}"] = tokens.tolist()
        weights = {name.replace("codebook.weight", "codebook"): t for name, t in model.state_dict().items()}
        case.save(weights)


def specforge() -> None:
    _without_package_code("specforge", "specforge.modeling", "specforge.modeling.draft")
    import warnings

    warnings.simplefilter("ignore")
    torch._dynamo.config.disable = True
    from specforge.modeling.draft import dspark
    from specforge.modeling.draft.domino import DominoDraftModel
    from transformers import DynamicCache, Qwen3Config

    version = f"specforge {_version('specforge')}"
    heads: dict[str, dict[str, Any]] = {
        f"specforge_dspark_{kind}": {
            "projector_type": "dspark", "markov_rank": 6, "markov_head_type": kind, "enable_confidence_head": True,
            "confidence_head_with_markov": True,
        }
        for kind in ("vanilla", "gated", "rnn")
    }  # fmt: skip
    for name, shift in (("specforge_domino", False), ("specforge_domino_shifted", True)):
        heads[name] = {"projector_type": "domino", "emb_dim": 5, "gru_hidden_dim": 6, "shift_label": shift,
                       "pure_draft_prefix_len": 1}  # fmt: skip
    for seed, (name, fields) in enumerate(heads.items(), start=10):
        inner = {"mask_token_id": MASK_ID, "target_layer_ids": [1, 3], **fields}
        config = KEYS | {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": BLOCK,
                         "num_target_layers": TARGET_LAYERS, "dflash_config": inner}  # fmt: skip
        settings = Qwen3Config(**config)
        settings._attn_implementation = "sdpa"
        domino = fields["projector_type"] == "domino"
        model = (DominoDraftModel if domino else dspark.DSparkDraftModel)(settings)
        randomised(model, seed)
        case = Case(name, "dflash" if domino else "dspark", config, 2, seed, version)
        first = 0 if not domino or fields["shift_label"] else 1
        with torch.no_grad():
            for index in range(2):
                cache, start = DynamicCache(), 0
                for step in STEPS:
                    anchor = step - 1
                    block = torch.full((1, BLOCK), MASK_ID)
                    block[0, 0] = case.ids[index][anchor]
                    hidden = model(
                        target_hidden=case.taps[index][None, start:anchor],
                        noise_embedding=torch.nn.functional.embedding(block, case.table),
                        position_ids=torch.arange(start, anchor + BLOCK)[None],
                        past_key_values=cache,
                        use_cache=True,
                        is_causal=False,
                    )
                    cache.crop(-BLOCK)
                    start = anchor
                    base = hidden @ case.head.T
                    if domino:
                        logits, tokens = _domino_greedy(model, base, hidden, block, case.table, first)
                    else:
                        tokens, logits = model.markov_head.sample_block_tokens(
                            base, first_prev_token_ids=block[:, 0], hidden_states=hidden
                        )
                        previous = torch.cat((block[:, :1], tokens[:, :-1]), dim=1)
                        sure = model.predict_confidence(hidden, prev_token_ids=previous)
                        case.found[f"confidence.{index}.{step}"] = torch.sigmoid(sure[0])
                    case.found[f"hidden.{index}.{step}"], case.found[f"logits.{index}.{step}"] = hidden[0], logits[0]
                    case.tokens[f"{index}.{step}"] = tokens[0].tolist()
        case.save(model.state_dict())
    _specforge_eagle3(version)


def _domino_greedy(model: Any, base: Any, hidden: Any, block: Any, table: Any, first: int) -> tuple[Any, Any]:
    """Left to right, as the package's own loop: the head sees the block's tokens so far."""
    done = block.clone()
    rows, tokens = [], []
    for slot in range(first, BLOCK):
        embedded = torch.nn.functional.embedding(done, table)[:, None]
        final = model.apply_logits_head(base[:, None], prev_token_embeddings=embedded, hidden_states=hidden[:, None])
        row = final[0, 0, slot]
        rows.append(row)
        tokens.append(int(row.argmax()))
        if slot + 1 - first < BLOCK:
            done[:, slot + 1 - first] = tokens[-1]
    return torch.stack(rows)[None], torch.tensor([tokens])


def _specforge_eagle3(version: str) -> None:
    from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3, prepare_decoder_attention_mask
    from transformers import LlamaConfig

    ids = torch.arange(0, VOCAB - 12) + torch.arange(0, VOCAB - 12) // 3
    config = KEYS | {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1,
                     "draft_vocab_size": len(ids), "pretraining_tp": 1, "pad_token_id": 0,
                     "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 4]}}  # fmt: skip
    model = LlamaForCausalLMEagle3(LlamaConfig(**config), attention_backend="sdpa")
    randomised(model, 30)
    case = Case("specforge_eagle3", "eagle3", config, 3, 30, version)
    model.d2t, model.t2d = ids - torch.arange(len(ids)), torch.isin(torch.arange(VOCAB), ids)
    model.embed_tokens.weight.data = case.table
    with torch.no_grad():
        for index in range(2):
            for step in STEPS:
                taps, tokens = case.taps[index][None, : step - 1], case.ids[index][None, 1:step]
                hidden = model.project_hidden_states(taps)
                width = hidden.shape[1]
                mask = prepare_decoder_attention_mask(torch.ones(1, width, dtype=torch.bool), (1, width), hidden, 0)
                positions, cache = torch.arange(width)[None], [[], []]
                drafted, rows = [], []
                for _ in range(BLOCK):
                    # The package unrolls all positions side by side; its last column is the draft.
                    hidden = model.backbone(
                        input_embeds=model.embed_input_ids(tokens), hidden_states=hidden, cache_hidden=cache,
                        attention_mask=mask, position_ids=positions,
                    )  # fmt: skip
                    logits = model.compute_logits(hidden)[0, -1]
                    rows.append(logits)
                    token = int(ids[int(logits.argmax())])
                    drafted.append(token)
                    tokens = torch.cat((tokens[:, 1:], torch.tensor([[token]])), dim=1)
                case.found[f"logits.{index}.{step}"] = torch.stack(rows)
                case.tokens[f"{index}.{step}"] = drafted
    case.save(dict(model.state_dict()), vocab_ids=ids.tolist())


def _without_package_code(*names: str) -> None:
    """Enter packages without running their __init__, which imports servers and loggers."""
    import importlib.util

    top = importlib.util.find_spec(names[0])
    if top is None or top.submodule_search_locations is None:
        raise SystemExit(f"{names[0]} is not installed here")
    root = Path(next(iter(top.submodule_search_locations))).parent
    for name in names:
        module = types.ModuleType(name)
        module.__path__ = [str(root / name.replace(".", "/"))]
        sys.modules[name] = module


def _version(package: str) -> str:
    return importlib.metadata.version(package)


MAKERS: dict[str, Callable[[], None]] = {"zlab": zlab, "specforge": specforge}

if __name__ == "__main__":
    from tests.drafters.learned.goldens import make_more

    (MAKERS | make_more.MAKERS)[sys.argv[1]]()
