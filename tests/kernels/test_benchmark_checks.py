"""What the kernels' benchmarks time: drafts that are accepted as far as they say, and laws checked before."""

import os
from pathlib import Path

import pytest
import torch

import draftproof
from benchmarks import verify_changes
from benchmarks.verify import FILTERS, TESTS, drafts_of, has_passed
from benchmarks.verify_ratio import is_law
from draftproof.kernels import Rows
from draftproof.params import SamplingParams
from draftproof.sampling import SamplerChain

BEFORE = torch.tensor([[0.5, 0.3, 0.2 - 1e-9, 1e-9]], dtype=torch.float64)


def over(*kept: bool) -> torch.Tensor:
    mass = torch.where(torch.tensor([kept]), BEFORE, 0.0)
    return mass / mass.sum()


def test_drafts_are_the_rows_own_tokens_up_to_where_they_are_accepted() -> None:
    own = [[3, 9, 4, 1], [7, 9, 0, 5]]
    assert drafts_of(own, 0, 10) == [[4, 0, 5], [8, 0, 1]]
    assert drafts_of(own, 2, 10) == [[3, 9, 5], [7, 9, 1]]
    assert drafts_of(own, 3, 10) == [[3, 9, 4], [7, 9, 0]]


def test_a_law_is_one() -> None:
    law = over(True, True, False, False)
    assert is_law(law.float(), law, BEFORE, 0.7)
    assert not is_law(law.float() + torch.tensor([[2e-6, 0.0, 0.0, 0.0]]), law, BEFORE, 0.7)


def test_only_near_ties_may_keep_other_tokens() -> None:
    fewer, more = over(True, True, False, False), over(True, True, True, False)
    for out, law in ((fewer, more), (more, fewer)):
        assert is_law(out.float(), law, BEFORE, 0.8 + 5e-7)
        assert is_law(out.float(), law, BEFORE, 0.8 - 5e-7)
        assert not is_law(out.float(), law, BEFORE, 0.8 + 1e-5)
        assert not is_law(out.float(), law, BEFORE, 0.8 - 1e-5)
    assert not is_law(over(True, False, True, False).float(), fewer, BEFORE, 0.8)


def test_a_wrong_normaliser_is_found() -> None:
    law = over(True, True, True, True)
    assert not is_law((law * 1.00001).float(), law, BEFORE, 1.0)


REPORT = """<testsuites><testsuite>{}</testsuite></testsuites>"""
CASES = [f'<testcase classname="{name[:-3].replace("/", ".")}" name="test">{{}}</testcase>' for name in TESTS]


@pytest.mark.parametrize(
    ("cases", "passed"),
    [
        (["".join(CASES).replace("{}", "")], True),
        ([case.replace("{}", "") for case in CASES[:1]], False),
        ([CASES[0].format(""), CASES[1].format("<failure/>")], False),
        ([CASES[0].format("<error/>"), CASES[1].format("")], False),
        ([CASES[0].format(""), CASES[1].format("<skipped/>")], False),
    ],
)
def test_only_a_report_of_all_tests_that_passed_will_do(tmp_path: Path, cases: list[str], passed: bool) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT.format("".join(cases)), encoding="utf-8")
    assert has_passed(report) == passed
    kernels = Path(draftproof.__file__).parent / "kernels"
    before = max(file.stat().st_mtime for file in kernels.rglob("*.py")) - 1
    os.utime(report, (before, before))
    assert not has_passed(report)


@pytest.mark.parametrize("kind", [name for name, kind in verify_changes.KINDS.items() if kind])
def test_changed_logits_are_the_chains(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(verify_changes, "RUN", 300)
    logits = torch.randn(6, 1000, generator=torch.Generator().manual_seed(5)).bfloat16() * 3
    given = verify_changes.changed(logits, FILTERS["none"], 2, verify_changes.KINDS[kind])
    rows = Rows.of_drafts([7, 7], [[3, 3], [5, 900]], device="cpu")
    found = verify_changes.processed(logits, rows, given)
    changes, chain = given.changes, SamplerChain("vllm")
    for row, (request, drafted) in enumerate([(0, []), (0, [3]), (0, [3, 3]), (1, []), (1, [5]), (1, [5, 900])]):
        biased = changes.bias_ids[request] >= 0
        bias = dict(
            zip(changes.bias_ids[request][biased].tolist(), changes.biases[request][biased].tolist(), strict=True)
        )
        params = SamplingParams(
            temperature=1.0, repetition_penalty=1.1, frequency_penalty=0.2, presence_penalty=0.3, logit_bias=bias
        )
        ids, counts = changes.seen_ids[request].tolist(), changes.seen_counts[request].tolist()
        prompt = [each for each in ids if each >= 0]
        output = [each for each, count in zip(ids, counts, strict=True) for _ in range(count) if each >= 0]
        resolved = chain.resolve(params, None, 1000)
        history = resolved.first_history(prompt).extended([*output, *drafted])
        mask = None if given.forbidden is None else ~given.forbidden[row].numpy()
        (law,) = chain.laws(logits[row : row + 1], resolved, [history], masks=[mask])
        plain = chain.resolve(SamplingParams(temperature=1.0), None, 1000)
        (of_found,) = chain.laws(found[row : row + 1], plain, [plain.first_history([])], masks=[mask])
        assert (law.at(None, 1000) == of_found.at(None, 1000)).all()


def test_words_hold_a_bit_for_each_token() -> None:
    allowed = torch.rand(3, 1000, generator=torch.Generator().manual_seed(6)) < 0.5
    words = verify_changes.words_of(allowed)
    place = torch.arange(1000)
    assert torch.equal((words[:, place // 32] >> (place % 32)) & 1 != 0, allowed)
