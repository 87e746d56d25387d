"""What the scripts about learned drafters compute, by hand."""

import json

import numpy as np
import pytest

from benchmarks import teacher_forced
from benchmarks.long_runs import distinct_trigrams, longest_repeated_run
from benchmarks.teacher_forced import figure, planted
from draftproof import LLM, SamplingParams
from draftproof.engine import admission
from draftproof.targets.toy import TableTarget
from draftproof.verify import get_verifier
from tests.drafters.tree.tables import uneven_table


def test_repetition_by_hand():
    assert distinct_trigrams([1, 2, 3, 1, 2, 3]) == 3 / 4
    assert distinct_trigrams([5] * 5) == 1 / 3
    assert longest_repeated_run([1, 2, 3, 9, 1, 2, 3, 8]) == 3
    assert longest_repeated_run([1, 2, 3]) == 0
    # The same token five times: four in a row at place 0 and at place 1.
    assert longest_repeated_run([7] * 5) == 4


def test_figure_is_the_mean_over_its_error():
    found = figure(np.array([1.0, -1.0, 1.0, 1.0]))
    assert found["mean"] == 0.5 and found["z"] == pytest.approx(0.5 / (1.0 / 2.0))


@pytest.mark.parametrize("name", ["rejection", "block"])
def test_the_planted_bug_emits_the_argmax(name, monkeypatch):
    """On a table whose law is known: without the bug the surprise is that of the law, with it far below."""
    config = {"method": "suffix", "verifier": name, "num_speculative_tokens": 3, "draft_length": "fixed",
              "prompt_lookup_min": 1}  # fmt: skip
    table = uneven_table(6, 2)
    params = [SamplingParams(seed=seed, max_tokens=60, detokenize=False) for seed in range(30)]
    z = {}
    for has_bug in (False, True):
        if has_bug:
            made = planted(name)
            monkeypatch.setattr(admission, "get_verifier", lambda asked, made=made: made)
        llm = LLM.from_target(TableTarget(table), None, speculative_config=config)
        values = []
        for output in llm.generate([[1, 2, 1, 2, 1]] * 30, params):
            context = [1, 2, 1, 2, 1]
            for token_id in output.outputs[0].token_ids:
                p = np.array([float(x) for x in table.probs(tuple(context))])
                values.append(-np.log(p[token_id]) + (p[p > 0] * np.log(p[p > 0])).sum())
                context.append(token_id)
        z[has_bug] = figure(np.array(values))["z"]
    assert abs(z[False]) < 4 and z[True] < -8
    assert get_verifier(name).name == name


def parts_values(part):
    """Numbers that say which part they are of; with the bug far below 0."""
    values = np.random.default_rng([part.first, part.has_bug]).normal(size=part.size)
    return values - 5.0 * part.has_bug


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_the_same_texts_count_in_however_many_processes(monkeypatch, capsys, jobs):
    monkeypatch.setattr(teacher_forced, "measured", parts_values)
    given = ["--num-tokens", "50", "--max-num-seqs", "8", "--verifiers", "block", "--jobs", jobs]
    monkeypatch.setattr("sys.argv", ["teacher_forced", *given])
    with pytest.raises(SystemExit) as ended:
        teacher_forced.main()
    document = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0 and document["passed"]
    for name, count, has_bug in (("block", 7, False), ("block, planted bug", 1, True)):
        parts = [
            parts_values(teacher_forced.Part("dspark", "block", has_bug, 8 * index, 8, 256, "cpu", 1000))
            for index in range(count)
        ]
        assert document["figures"][name] == figure(np.concatenate(parts))
