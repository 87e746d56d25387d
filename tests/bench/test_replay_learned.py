"""The replay of learned drafters: the one without weights of its own drafts fifteen tokens and changes nothing."""

from types import SimpleNamespace

import pytest

from benchmarks import replay_learned
from benchmarks.replay_learned import Part, replayed, write_drafters
from tests.threads import one_thread


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drafters")
    write_drafters(folder)
    return folder


def test_a_cell(folder, monkeypatch, capsys):
    monkeypatch.setattr(replay_learned, "METHODS", ("dflash 2",))
    monkeypatch.setattr(replay_learned, "CHAINS", (15,))
    with one_thread():
        cold, warm = replayed(Part(str(folder), "float32", 0, 1, 1, 12))
    assert (cold["temperature"], warm["temperature"]) == (0.0, 1.0)
    for record in (cold, warm):
        assert record["different"] == 0 and record["texts"] == 1 and record["tokens"] == 12
    # It is dflash's still: random weights would have nothing accepted.
    assert cold["accepted"] > 0 and cold["passes"] < 12
    assert "selector_top_k=16" in capsys.readouterr().err


def test_another_text_is_counted():
    def output(*token_ids):
        record = {"num_spec_steps": 1, "num_plain_steps": 1, "num_accepted_draft_tokens": 2}
        metrics = SimpleNamespace(speculative_decoding=record)
        return SimpleNamespace(metrics=metrics, outputs=[SimpleNamespace(token_ids=token_ids)])

    found = replay_learned._compared([(1, 2), (3, 4)], [output(1, 2), output(3, 5)])
    assert found == {"texts": 2, "tokens": 4, "different": 1, "passes": 4, "accepted": 4}
