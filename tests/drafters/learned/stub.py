"""A target that is nothing but recorded hidden states, an embedding and an output layer: for drafters alone."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

GOLDENS = Path(__file__).parent / "goldens"


class StubTarget:
    """slots[s] = (token ids, their taps); `lengths` says how many of them each slot holds now."""

    max_model_len = 256

    def __init__(self, table: torch.Tensor, head: torch.Tensor, num_layers: int, taps: list[torch.Tensor], model=None):
        self.vocab_size, self.num_slots = len(table), len(taps)
        self.dtype, self.device = torch.float32, torch.device("cpu")
        self.taps, self.lengths, self.tap_ids = taps, [0] * len(taps), ()
        embedding = torch.nn.Embedding.from_pretrained(table)
        output = torch.nn.Linear(*reversed(head.shape), bias=False)
        output.weight = torch.nn.Parameter(head)
        config = SimpleNamespace(num_hidden_layers=num_layers, hidden_size=table.shape[1], tie_word_embeddings=False)
        config.get_text_config = lambda decoder: config
        self.model: Any = model or SimpleNamespace(
            get_input_embeddings=lambda: embedding, get_output_embeddings=lambda: output, config=config
        )
        if model is not None:
            model.get_input_embeddings().weight.data, model.get_output_embeddings().weight.data = table, head

    def request_taps(self, tap_ids):
        self.tap_ids = tuple(tap_ids)
        return self

    def check_open(self):
        pass

    def read(self, slot, start, stop):
        return self.taps[slot][start:stop]

    def length(self, slot):
        return self.lengths[slot]


class Golden:
    """One file of `goldens/`."""

    def __init__(self, name: str) -> None:
        path = GOLDENS / f"{name}.safetensors"
        self.tensors = load_file(str(path))
        with safe_open(str(path), framework="pt") as file:
            self.facts: dict[str, Any] = json.loads(file.metadata()["golden"])
        self.method: str = self.facts["method"]
        self.ids = [self.tensors[f"ids.{index}"].tolist() for index in range(2)]
        self.taps = [self.tensors[f"taps.{index}"].float() for index in range(2)]

    def write_checkpoint(self, folder: Path) -> Path:
        """The drafter's folder as its package would write it."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = {k.removeprefix("weights."): v for k, v in self.tensors.items() if k.startswith("weights.")}
        save_file(weights, str(folder / "model.safetensors"))
        (folder / "config.json").write_text(json.dumps(self.facts["config"]), encoding="utf-8")
        return folder

    def target(self, num_layers: int = 6) -> StubTarget:
        table, head = self.tensors["table"].float(), self.tensors["head"].float()
        return StubTarget(table, head, num_layers, self.taps, self._model(num_layers))

    def _model(self, num_layers: int) -> Any:
        kind = self.facts.get("target", {}).get("kind")
        if kind is None:
            return None
        import transformers

        if kind == "glm4_moe":
            return transformers.Glm4MoeForCausalLM(transformers.Glm4MoeConfig(**self.facts["config"])).eval()
        keys = self.facts["config"]["transformer_layer_config"] | {"num_hidden_layers": num_layers}
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**keys)).eval()
