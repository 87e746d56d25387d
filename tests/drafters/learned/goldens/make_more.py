"""The golden files of speculators and transformers; see `make.py`."""

from __future__ import annotations

import copy
import importlib.metadata
from collections.abc import Callable
from typing import Any

import torch

from tests.drafters.learned.goldens.make import (
    BLOCK,
    HIDDEN,
    KEYS,
    MASK_ID,
    STEPS,
    TARGET_LAYERS,
    VOCAB,
    Case,
    randomised,
)


def transformers() -> None:
    _muse()
    _mtp()


def _muse() -> None:
    from transformers.cache_utils import DFlashCache
    from transformers.models.muse_glimmer_assistant import modeling_muse_glimmer_assistant as package
    from transformers.models.muse_glimmer_assistant.configuration_muse_glimmer_assistant import (
        MuseGlimmerAssistantConfig,
    )

    version = f"transformers {importlib.metadata.version('transformers')}, the DFlash model of muse_glimmer_assistant"
    config = KEYS | {
        "model_type": "muse_glimmer_assistant", "architectures": ["MuseGlimmerAssistantModel"],
        "layer_types": ["full_attention"] * 2, "block_size": BLOCK, "mask_token_id": MASK_ID,
        "target_layer_ids": [1, 3], "sliding_window": 64,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }  # fmt: skip
    settings = MuseGlimmerAssistantConfig(**{k: v for k, v in config.items() if k not in ("model_type", "rope_theta")})
    model = package.MuseGlimmerAssistantModel(settings)
    randomised(model, 40)
    case = Case("transformers_dflash", "dflash", config, 2, 40, version)
    with torch.no_grad():
        for index in range(2):
            cache, start = DFlashCache(config=settings), 0
            cache.activate_past_recording()
            for step in STEPS:
                anchor = step - 1
                block = torch.full((1, BLOCK), MASK_ID)
                block[0, 0] = case.ids[index][anchor]
                cache.set_previous_accepted_tokens(anchor - start)
                if start:
                    cache.crop(-BLOCK)
                hidden = model(
                    noise_embeds=torch.nn.functional.embedding(block, case.table),
                    context_hidden_states=case.taps[index][None, start:anchor],
                    position_ids=torch.arange(start, anchor + BLOCK)[None],
                    cache=cache,
                ).last_hidden_state
                start = anchor
                logits = hidden[0, 1:] @ case.head.T
                case.found[f"hidden.{index}.{step}"], case.found[f"logits.{index}.{step}"] = hidden[0], logits
                case.tokens[f"{index}.{step}"] = logits.argmax(-1).tolist()
    case.save(model.state_dict())


def _mtp() -> None:
    """transformers' own MTP model over a tiny Glm4Moe, dense layers only, run again on its own hidden state."""
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM
    from transformers.cache_utils import MtpCache
    from transformers.modeling_layers import MtpModel

    version = f"transformers {importlib.metadata.version('transformers')}, MtpModel over glm4_moe"
    fields = KEYS | {
        "num_hidden_layers": 2, "first_k_dense_replace": 1, "moe_intermediate_size": 8, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "n_shared_experts": 1, "use_qk_norm": True, "partial_rotary_factor": 0.5,
        "num_nextn_predict_layers": 1, "pad_token_id": None, "eos_token_id": None, "bos_token_id": None,
    }  # fmt: skip
    main = Glm4MoeForCausalLM(Glm4MoeConfig(**{k: v for k, v in fields.items() if k != "rope_theta"}))
    main.set_attn_implementation("eager")
    randomised(main, 41)
    model = MtpModel(main, 1)
    own = {n: p for n, p in model.named_parameters() if n.startswith("layers.")}
    generator = torch.Generator().manual_seed(42)
    for name, parameter in own.items():
        values = 0.25 * torch.randn(parameter.shape, generator=generator)
        parameter.data = ((1.0 + 0.5 * values) if "norm" in name and parameter.ndim == 1 else values).bfloat16().float()
    model.eval()
    config = main.config.to_dict()
    case = Case("transformers_mtp", "mtp", config, 1, 41, version)
    main.model.embed_tokens.weight.data, main.lm_head.weight.data = case.table.clone(), case.head.clone()
    with torch.no_grad():
        for index in range(2):
            for step in STEPS:
                cache = MtpCache(config=main.config.get_mtp_config())
                tokens, hidden = case.ids[index][None, 1:step], case.taps[index][None, : step - 1]
                positions, rows, drafted = torch.arange(1, step)[None], [], []
                for _ in range(BLOCK):
                    out = model.forward_layer(0, hidden, positions, cache, input_ids=tokens)
                    logits = model._project_to_logits(out[:, -1:])[0, 0]
                    rows.append(logits)
                    drafted.append(int(logits.argmax()))
                    hidden, tokens, positions = out[:, -1:], torch.tensor([[drafted[-1]]]), positions[:, -1:] + 1
                case.found[f"logits.{index}.{step}"] = torch.stack(rows)
                case.tokens[f"{index}.{step}"] = drafted
    prefix = "model.layers.2."
    weights = {}
    for name, tensor in own.items():
        name = name.removeprefix("layers.0.").removeprefix("mtp_block.")
        weights[prefix + name.replace("post_norm.", "shared_head.norm.")] = tensor.detach()
    for name, buffer in model.named_buffers():
        if name.startswith("layers.0.mtp_block."):
            weights[prefix + name.removeprefix("layers.0.mtp_block.")] = buffer
    case.save(_one_by_one(weights), target={"kind": "glm4_moe"})


def _one_by_one(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Experts as public checkpoints have them, each by itself."""
    found = {}
    for name, tensor in weights.items():
        if name.endswith("experts.gate_up_proj"):
            for index, both in enumerate(tensor):
                gate, up = both.chunk(2)
                prefix = name.removesuffix("gate_up_proj")
                found[f"{prefix}{index}.gate_proj.weight"], found[f"{prefix}{index}.up_proj.weight"] = gate, up
        elif name.endswith("experts.down_proj"):
            for index, down in enumerate(tensor):
                found[f"{name.removesuffix('down_proj')}{index}.down_proj.weight"] = down
        else:
            found[name] = tensor
    return {name: tensor.clone() for name, tensor in found.items()}


def speculators() -> None:
    from transformers import Qwen3Config

    from tests.drafters.learned.goldens.make import _version, _without_package_code

    methods = (f"speculators.models.{name}" for name in ("dflash", "dspark", "eagle3", "mtp"))
    _without_package_code("speculators", "speculators.models", *methods)

    version = f"speculators {_version('speculators')}"
    _speculators_dspark(version, Qwen3Config)
    _speculators_eagle3(version, Qwen3Config)
    _speculators_mtp(version, Qwen3Config)


def _speculators_dspark(version: str, config_class: Any) -> None:
    from speculators.models.dflash.model_definitions import Qwen3DFlashDecoderLayer
    from speculators.models.dspark.model_definitions import ConfidenceHead, MarkovHead
    from transformers import DynamicCache
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, Qwen3RotaryEmbedding

    ids = torch.arange(0, 28) + torch.arange(0, 28) // 3
    settings = config_class(**KEYS)
    settings._attn_implementation = "sdpa"

    class Parts(torch.nn.Module):
        """The package's own parts under its names; its model class wants a verifier on the hub."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(Qwen3DFlashDecoderLayer(settings, index) for index in range(2))
            self.norm, self.hidden_norm = Qwen3RMSNorm(HIDDEN, eps=1e-6), Qwen3RMSNorm(HIDDEN, eps=1e-6)
            self.fc = torch.nn.Linear(2 * HIDDEN, HIDDEN, bias=False)
            self.lm_head = torch.nn.Linear(HIDDEN, len(ids), bias=False)
            self.markov_head = MarkovHead(
                verifier_vocab_size=VOCAB, draft_vocab_size=len(ids), markov_rank=6, hidden_size=HIDDEN
            )
            self.confidence_head = ConfidenceHead(HIDDEN + 6)

    model, rotary = Parts(), Qwen3RotaryEmbedding(settings)
    randomised(model, 50)
    config = {
        "speculators_model_type": "dspark", "architectures": ["DSparkSpeculator"], "draft_vocab_size": len(ids),
        "transformer_layer_config": KEYS | {"model_type": "qwen3"}, "aux_hidden_state_layer_ids": [2, 4],
        "block_size": BLOCK, "mask_token_id": MASK_ID, "sample_from_anchor": True, "markov_rank": 6,
        "markov_head_type": "vanilla", "enable_confidence_head": True, "confidence_head_with_markov": True,
    }  # fmt: skip
    case = Case("speculators_dspark", "dspark", config, 2, 50, version)
    with torch.no_grad():
        for index in range(2):
            cache, start = DynamicCache(), 0
            for step in STEPS:
                anchor = step - 1
                block = torch.full((1, BLOCK), MASK_ID)
                block[0, 0] = case.ids[index][anchor]
                hidden = torch.nn.functional.embedding(block, case.table)
                context = model.hidden_norm(model.fc(case.taps[index][None, start:anchor]))
                rotation = rotary(hidden, torch.arange(start, anchor + BLOCK)[None])
                for layer in model.layers:
                    hidden = layer(
                        target_hidden=context, hidden_states=hidden, attention_mask=None, past_key_value=cache,
                        use_cache=True, position_embeddings=rotation,
                    )  # fmt: skip
                cache.crop(-BLOCK)
                start, hidden = anchor, model.norm(hidden)
                base, previous, rows, sure, tokens = model.lm_head(hidden)[0], block[0, :1], [], [], []
                for slot in range(BLOCK):
                    embedded = model.markov_head.prev_embeddings(previous)
                    bias = model.markov_head.block_bias(
                        prev_token_ids=previous[None], hidden_states=hidden[:, slot : slot + 1]
                    )[0, 0]
                    sure.append(torch.sigmoid(model.confidence_head(torch.cat((hidden[0, slot], embedded[0]), -1))))
                    rows.append(base[slot] + bias)
                    previous = ids[rows[-1].argmax()][None]
                    tokens.append(int(previous))
                case.found[f"hidden.{index}.{step}"], case.found[f"logits.{index}.{step}"] = (
                    hidden[0],
                    torch.stack(rows),
                )
                case.found[f"confidence.{index}.{step}"] = torch.stack(sure)
                case.tokens[f"{index}.{step}"] = tokens
    marks = {"d2t": ids - torch.arange(len(ids)), "t2d": torch.isin(torch.arange(VOCAB), ids)}
    case.save(model.state_dict() | marks, vocab_ids=ids.tolist())


def _speculators_eagle3(version: str, config_class: Any) -> None:
    from speculators.models.eagle3.model_definitions import Qwen3DecoderEagle3FirstLayer
    from transformers import DynamicCache
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, Qwen3RotaryEmbedding

    settings = config_class(**(KEYS | {"num_hidden_layers": 1}))
    settings._attn_implementation = "sdpa"
    for seed, (name, before_fc, each_tap) in enumerate(
        (("speculators_eagle3_norm_before_fc", True, False), ("speculators_eagle3_fc_norm", False, True)), start=60
    ):

        class Parts(torch.nn.Module):
            """The package's own layer under its names."""

            def __init__(self, before_fc: bool, each_tap: bool) -> None:
                super().__init__()
                self.fc = torch.nn.Linear(3 * HIDDEN, HIDDEN, bias=False)
                self.layers = torch.nn.ModuleList(
                    [Qwen3DecoderEagle3FirstLayer(settings, layer_idx=0, norm_before_residual=True)]
                )
                self.norm = Qwen3RMSNorm(HIDDEN, eps=1e-6)
                self.lm_head = torch.nn.Linear(HIDDEN, VOCAB, bias=False)
                if before_fc:
                    self.input_norm = Qwen3RMSNorm(3 * HIDDEN, eps=1e-6)
                if each_tap:
                    self.fc_norm = torch.nn.ModuleList(Qwen3RMSNorm(HIDDEN, eps=1e-6) for _ in range(3))

        model, rotary = Parts(before_fc, each_tap), Qwen3RotaryEmbedding(settings)
        randomised(model, seed)
        config = {
            "speculators_model_type": "eagle3", "draft_vocab_size": VOCAB, "norm_before_residual": True,
            "transformer_layer_config": KEYS | {"model_type": "qwen3", "num_hidden_layers": 1},
            "eagle_aux_hidden_state_layer_ids": [1, 3, 5], "norm_before_fc": before_fc, "fc_norm": each_tap,
            "norm_output": True,
        }  # fmt: skip
        case = Case(name, "eagle3", config, 3, seed, version)
        with torch.no_grad():
            for index in range(2):
                for step in STEPS:
                    taps = case.taps[index][None, : step - 1]
                    if before_fc:
                        taps = model.input_norm(taps)
                    if each_tap:
                        parts = [norm(p) for norm, p in zip(model.fc_norm, taps.chunk(3, -1), strict=True)]
                        taps = torch.cat(parts, -1)
                    hidden, tokens = model.fc(taps), case.ids[index][None, 1:step]
                    cache, positions, rows, drafted = DynamicCache(), torch.arange(step - 1)[None], [], []
                    for turn in range(BLOCK):
                        embedded = torch.nn.functional.embedding(tokens, case.table)
                        width = embedded.shape[1]
                        mask = torch.full((width, width), torch.finfo(torch.float32).min).triu(1)[None, None]
                        hidden = model.layers[0](
                            torch.cat((embedded, hidden), -1), attention_mask=mask if turn == 0 else None,
                            position_ids=positions, past_key_values=cache, use_cache=True,
                            position_embeddings=rotary(hidden, positions),
                        )  # fmt: skip
                        hidden = model.norm(hidden)[:, -1:]
                        rows.append(model.lm_head(hidden)[0, 0])
                        drafted.append(int(rows[-1].argmax()))
                        tokens, positions = torch.tensor([[drafted[-1]]]), positions[:, -1:] + 1
                    case.found[f"logits.{index}.{step}"] = torch.stack(rows)
                    case.tokens[f"{index}.{step}"] = drafted
        case.save(model.state_dict())


def _speculators_mtp(version: str, config_class: Any) -> None:
    from speculators.models.mtp.model_definitions import Qwen3MTPLayer
    from transformers import DynamicCache
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    settings = config_class(**(KEYS | {"num_hidden_layers": TARGET_LAYERS}))
    settings._attn_implementation = "sdpa"
    model, rotary = Qwen3MTPLayer(copy.deepcopy(settings)), Qwen3RotaryEmbedding(settings)
    randomised(model, 70)
    config = {"speculators_model_type": "mtp", "transformer_layer_config": KEYS | {"model_type": "qwen3"}}
    case = Case("speculators_mtp", "mtp", config, 1, 70, version)
    with torch.no_grad():
        for index in range(2):
            for step in STEPS:
                hidden, tokens = case.taps[index][None, : step - 1], case.ids[index][None, 1:step]
                cache, positions, rows, drafted = DynamicCache(), torch.arange(step - 1)[None], [], []
                for turn in range(BLOCK):
                    embedded = torch.nn.functional.embedding(tokens, case.table)
                    width = embedded.shape[1]
                    mask = torch.full((width, width), torch.finfo(torch.float32).min).triu(1)[None, None]
                    hidden = model(
                        hidden_states=hidden, token_embeddings=embedded, attention_mask=mask if turn == 0 else None,
                        position_ids=positions, position_embeddings=rotary(hidden, positions), past_key_values=cache,
                        use_cache=True,
                    )[:, -1:]  # fmt: skip
                    rows.append(hidden[0, 0] @ case.head.T)
                    drafted.append(int(rows[-1].argmax()))
                    tokens, positions = torch.tensor([[drafted[-1]]]), positions[:, -1:] + 1
                case.found[f"logits.{index}.{step}"] = torch.stack(rows)
                case.tokens[f"{index}.{step}"] = drafted
    names = {f"mtp_layers.0.{name}": tensor for name, tensor in model.state_dict().items()}
    case.save(names, target={"kind": "qwen3"})


MAKERS: dict[str, Callable[[], None]] = {"speculators": speculators, "transformers": transformers}
