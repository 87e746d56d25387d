"""Text made by the target: whose tokens they are, documents that don't see each other, shards that resume."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from draftproof.bench.prompts import built_in
from draftproof.errors import ModelError, ParameterError
from draftproof.train.corpus import Corpus, Document, shard_path, write_shard
from draftproof.train.generate import GenerationSettings, generate_corpus, rows_of, sample_documents
from draftproof.train.passages import read_passages
from draftproof.train.prompts import built_in_prompts
from draftproof.train.rows import SharedColumns, StaticRows, choose_rows
from draftproof.train.starts import STEMS, WORDS_PER_STEM, widened_stems
from draftproof.train.target import FrozenTarget
from draftproof.train.turns import read_turns
from tests.targets.models import VOCAB_SIZE, tiny_model
from tests.train.conftest import PROMPTS, SETTINGS, TURNS, make_target


def _documents(target, turns, prompts, settings, shard):
    return sample_documents(rows_of(target, settings), turns, prompts, settings, shard, target.vocab_size)


def test_documents_begin_as_chats_do(target, text):
    corpus = Corpus(text, VOCAB_SIZE)
    with_prompt = 0
    for index in range(len(corpus)):
        document = corpus[index]
        ids, sampled = document.token_ids.tolist(), document.sampled.tolist()
        assert ids[:2] == [1, 2][: len(ids)] and not any(sampled[:2])
        assert len(ids) <= SETTINGS.max_length
        if len(ids) > 3 and not sampled[2]:
            with_prompt += 1
            assert any(ids[2:].copy()[: len(p)] == p[: len(ids) - 2] for p in PROMPTS)
        # The model ends a user's turn with 0; then its own turn is opened, which is no token of its own.
        elif 0 in ids[2:-3]:
            end = ids.index(0, 2)
            assert sampled[end] and ids[end + 1 : end + 3] == [3, 4] and not any(sampled[end + 1 : end + 3])
    assert 0.2 < with_prompt / len(corpus) < 0.8


@pytest.mark.parametrize("static", [False, True])
def test_each_row_is_the_models_own_law(target, static):
    """Teacher-forced: the tokens' mean surprise is the entropy of the model's laws at their places.

    About 600 sampled tokens; the difference has mean 0 and a standard error estimated from the sample; 4 of them.
    A row that saw another document, or positions counted from the buffer's beginning, is tens of them off.
    """
    rows = choose_rows(make_target(), num_rows=SETTINGS.batch_size, num_columns=SETTINGS.num_columns,
                       max_length=SETTINGS.max_length, top_p=1.0, static=static)  # fmt: skip
    assert isinstance(rows, StaticRows if static else SharedColumns)
    documents = sample_documents(rows, TURNS, PROMPTS, SETTINGS, 0, VOCAB_SIZE)
    differences = []
    for document in documents:
        ids = torch.from_numpy(document.token_ids)
        with torch.no_grad():
            laws = torch.log_softmax(target.model(input_ids=ids[None], use_cache=False).logits[0], dim=-1)
        entropy = -(laws.exp() * laws).sum(-1)
        for place in np.flatnonzero(document.sampled):
            differences.append(float(-laws[place - 1, ids[place]] - entropy[place - 1]))
    values = np.array(differences)
    assert len(values) > 400
    assert abs(values.mean()) < 4 * values.std() / np.sqrt(len(values))


def test_same_seed_same_text(target):
    first, again = (_documents(target, TURNS, PROMPTS, SETTINGS, 3) for _ in range(2))
    other = _documents(target, TURNS, PROMPTS, SETTINGS, 4)
    assert [d.token_ids.tolist() for d in first] == [d.token_ids.tolist() for d in again]
    assert [d.token_ids.tolist() for d in first] != [d.token_ids.tolist() for d in other]


def test_rows_of_both_kinds_write_the_same_text():
    """Cold, so that the draws are the model's best tokens: the same documents, by columns and by slots."""
    settings = replace(SETTINGS, temperatures=(1e-4,))
    texts = []
    for static in (False, True):
        rows = choose_rows(make_target(), num_rows=8, num_columns=96, max_length=24, top_p=1.0, static=static)
        for shard in (0, 1):
            documents = sample_documents(rows, TURNS, PROMPTS, settings, shard, VOCAB_SIZE)
            texts.append([(d.token_ids.tolist(), d.sampled.tolist()) for d in documents])
    assert texts[:2] == texts[2:] and texts[0] != texts[1]


def test_models_that_static_forwards_dont_fit_share_columns():
    model = tiny_model("llama")
    model.set_attn_implementation("eager")
    target = FrozenTarget(model, None, "tiny")
    rows = choose_rows(target, num_rows=2, num_columns=8, max_length=8, top_p=1.0, static=True)
    assert isinstance(rows, SharedColumns)
    assert len(sample_documents(rows, TURNS, PROMPTS, replace(SETTINGS, batch_size=2, num_columns=8), 0, VOCAB_SIZE))


def test_rows_without_a_law_are_an_error():
    target = make_target()
    target.model.lm_head.weight.data.fill_(float("nan"))
    rows = choose_rows(target, num_rows=8, num_columns=96, max_length=24, top_p=1.0)
    with pytest.raises(ModelError, match="NaN"):
        sample_documents(rows, TURNS, PROMPTS, SETTINGS, 0, VOCAB_SIZE)


def test_temperature_is_each_documents_own(target):
    cold = replace(SETTINGS, temperatures=(1e-4,))
    documents = _documents(target, TURNS, PROMPTS, cold, 0)
    ids = torch.from_numpy(documents[0].token_ids)
    with torch.no_grad():
        best = target.model(input_ids=ids[None], use_cache=False).logits[0].argmax(-1)
    for place in np.flatnonzero(documents[0].sampled):
        assert int(best[place - 1]) == int(ids[place])


def test_users_turns_have_a_temperature_of_their_own(target):
    """Cold users' turns and warm replies: the former are the model's best tokens, the latter mostly not."""
    warm = replace(SETTINGS, temperatures=(50.0,), user_temperature=1e-4, prompt_share=0.0)
    turns = replace(TURNS, end_ids=frozenset(range(0, VOCAB_SIZE, 5)))
    cold, others = 0, 0
    for document in _documents(target, turns, PROMPTS, warm, 0):
        ids, own = document.token_ids.tolist(), document.sampled.tolist()
        with torch.no_grad():
            best = target.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].argmax(-1).tolist()
        end = next((place for place in range(2, len(ids)) if ids[place] in turns.end_ids), len(ids))
        for place in np.flatnonzero(own):
            if place <= end:
                assert best[place - 1] == ids[place]
                cold += 1
            else:
                others += best[place - 1] != ids[place]
    assert cold > 50 and others > 50


def test_system_prompts_open_their_share(target):
    turns = replace(TURNS, system_openings=((9, 9, 1, 2),))
    settings = replace(SETTINGS, prompt_share=0.3, system_share=0.5)
    first = [tuple(d.token_ids[:2].tolist()) for d in _documents(target, turns, PROMPTS, settings, 0)]
    assert set(first) == {(1, 2), (9, 9)} and 0.1 < first.count((9, 9)) / len(first) < 0.7


def test_stems_begin_users_turns_that_the_target_ends(target):
    turns = replace(TURNS, stems=((9, 8), (7,)))
    settings = replace(SETTINGS, prompt_share=0.3, stem_share=0.5)
    found = {"stem": 0, "prompt": 0, "bare": 0}
    for document in _documents(target, turns, PROMPTS, settings, 0):
        ids, own = document.token_ids.tolist(), document.sampled.tolist()
        if len(ids) < 6:
            continue
        given = own.index(True) if True in own else len(own)
        begin = tuple(ids[2:given])
        kind = "bare" if not begin else "stem" if begin in turns.stems else "prompt"
        found[kind] += 1
        # A prompt is whole, and the reply is opened behind it; a stem isn't, and the target goes on.
        assert kind != "prompt" or begin[-2:] == (3, 4) or given == len(own)
    assert min(found.values()) > 3


def test_passages_are_the_targets_paragraphs(tmp_path):
    """Tokens are letters here. A user's turn is no passage, nor what ends in the middle or has a short sentence."""
    good = "The bridge was closed in May. Nobody crossed it for a year! Was it missed by anyone at all? The m"
    texts = (good, f"A title\n{good}\nNo. It is not so in this one. And so it goes on and on, of course.", "x" * 90)
    documents = []
    for text in texts:
        ids = [5, *[ord(letter) for letter in "Asked. This is a question. It is long enough here."], 0, 6]
        said = [ord(letter) for letter in text]
        documents.append(Document(np.array([*ids, *said, 0]), np.array([False] * len(ids) + [True] * (len(said) + 1))))
    write_shard(shard_path(tmp_path, 0), documents, {})
    found = read_passages(Corpus(tmp_path, 256), lambda ids: "".join(map(chr, ids)), frozenset({0}))
    sentences = ["The bridge was closed in May.", "Nobody crossed it for a year!", "Was it missed by anyone at all?"]
    assert found == [sentences, sentences]
    prompts = built_in_prompts(60, 0, found)
    assert prompts != built_in_prompts(60, 0) and prompts == built_in_prompts(60, 0, found)
    assert any(" ".join(sentences) in prompt for prompt in prompts)
    write_shard(shard_path(tmp_path, 0), documents[2:], {})
    with pytest.raises(ParameterError, match="paragraphs of three sentences"):
        read_passages(Corpus(tmp_path, 256), lambda ids: "".join(map(chr, ids)), frozenset({0}))


def test_resume_keeps_complete_shards(target, tmp_path):
    made = list(generate_corpus(target, TURNS, PROMPTS, tmp_path, SETTINGS, num_tokens=1500))
    assert len(made) == 2
    before = shard_path(tmp_path, 0).read_bytes()
    shard_path(tmp_path, 1).unlink()
    (tmp_path / "shard-00001.tmp").write_bytes(b"half")
    assert list(generate_corpus(target, TURNS, PROMPTS, tmp_path, SETTINGS, num_tokens=1500)) == made
    assert shard_path(tmp_path, 0).read_bytes() == before


def test_time_up_begins_no_shard(target, tmp_path):
    assert not list(
        generate_corpus(target, TURNS, PROMPTS, tmp_path, SETTINGS, num_tokens=1500, is_time_up=lambda: True)
    )


def test_other_settings_are_refused(target, text):
    other = replace(SETTINGS, seed=2)
    with pytest.raises(ParameterError, match="made with the same settings.*shard-00000"):
        list(generate_corpus(target, TURNS, PROMPTS, text, other, num_tokens=1500))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"prompt_share": 1.5}, "between 0 and 1"),
        ({"temperatures": (0.0,)}, "above 0"),
        ({"temperatures": ()}, "above 0"),
        ({"top_p": 0.0}, "above 0 and at most 1"),
        ({"system_share": -0.5}, "between 0 and 1"),
        ({"stem_share": 2.0}, "between 0 and 1"),
        ({"user_temperature": 0.0}, "above 0"),
    ],
)
def test_bad_settings(fields, words):
    with pytest.raises(ParameterError, match=words):
        GenerationSettings(**fields)


def test_bad_corpora(tmp_path, text):
    with pytest.raises(ParameterError, match="train data"):
        Corpus(tmp_path, VOCAB_SIZE)
    with pytest.raises(ModelError, match="another target's text"):
        Corpus(text, 10)
    path = shard_path(tmp_path, 0)
    write_shard(path, [Document(np.array([1, 2, 3]), np.array([False, True, True]))], {})
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ModelError, match="truncated or damaged"):
        Corpus(tmp_path, VOCAB_SIZE)


def test_turns_of_a_template():
    class Tokenizer:
        chat_template = "there is one"
        bos_token_id = None

        def apply_chat_template(self, messages, tokenize, add_generation_prompt):
            return "".join(f"<{message['role'][0]}>{message['content']}<e>\n" for message in messages) + "<a>"

        def __call__(self, text, add_special_tokens):
            return {"input_ids": [ord(letter) for letter in text]}

    turns = read_turns(Tokenizer(), (ord("<"),))
    assert turns.is_chat and turns.opening == (60, 117, 62) and turns.system_openings == ()
    opened = read_turns(Tokenizer(), (ord("<"),), ["Be", "No"]).system_openings
    assert ["".join(map(chr, opening)) for opening in opened] == ["<s>Be<e>\n<u>", "<s>No<e>\n<u>"]
    assert read_turns(Tokenizer(), (ord("<"),), (), ["Do", "I"]).stems == ((68, 111), (73,))
    assert turns.reply[0] == 60 and turns.reply_after_end() == turns.reply[1:]
    Tokenizer.chat_template = None
    assert read_turns(Tokenizer(), (7,)).opening == (7,)
    with pytest.raises(ParameterError, match="BOS or an end token"):
        read_turns(Tokenizer(), ())


def test_built_in_prompts():
    prompts = built_in_prompts(120, 0)
    assert prompts == built_in_prompts(120, 0) != built_in_prompts(120, 1)
    assert len(set(prompts)) > 100
    assert any("Python function" in prompt for prompt in prompts) and any("JSON" in prompt for prompt in prompts)
    assert not {prompt.text for prompt in built_in()} & set(built_in_prompts(20_000, 2))
    assert max(len(stem.split()) for stem in STEMS) <= 9 and len(set(STEMS)) == len(STEMS)


class _Letters:
    """Pieces " aaaa", " aaab", … and what is no word; the second half of the vocabulary is of joined pieces."""

    def __len__(self):
        return 1200

    def decode(self, ids):
        [i] = ids
        return "\n" if i % 2 else f" {'joined' if i >= 600 else 'word'}{chr(97 + i // 26 % 26)}{chr(97 + i % 26)}"


def test_stems_end_in_words_of_the_vocabulary():
    found = widened_stems(_Letters(), 0)
    assert set(STEMS) <= set(found) and found == widened_stems(_Letters(), 0) != widened_stems(_Letters(), 1)
    assert len(STEMS) < len(found) <= len(STEMS) * (1 + WORDS_PER_STEM)
    assert any(text.startswith("Tell me word") for text in found) and not any("joined" in text for text in found)
    assert any(text.startswith("Give the gist:\n\nWord") for text in found)
    assert not any(text.endswith(" ") or "\n " in text for text in found)


def test_a_vocabulary_without_words_leaves_the_stems():
    class Numbers(_Letters):
        def decode(self, ids):
            return str(ids[0])

    assert widened_stems(Numbers(), 0) == list(STEMS)
