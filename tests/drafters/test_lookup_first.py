"""A lookup where the text repeats itself, the other drafter elsewhere: who is asked depends on the context alone."""

from dataclasses import dataclass, field

import pytest

from draftproof.config import SpeculativeConfig
from draftproof.core import Draft
from draftproof.drafters.lookup_first import LookupFirst
from draftproof.errors import ParameterError
from tests.drafters.requests import request_for, verdict_of


@dataclass
class _Nines:
    """Drafts nines, and remembers what it was told."""

    method: str = "draft_model"
    proposes_without_confidence: bool = True
    told: list[str] = field(default_factory=list)

    def propose(self, requests):
        self.told += [f"propose {request.slot}" for request in requests]
        return [Draft.of_token_ids(len(r.context_ids), [9] * r.num_tokens) for r in requests]

    def observe(self, slot, context_ids, verdict):
        self.told.append(f"observe {slot}")

    def release(self, slot):
        self.told.append(f"release {slot}")

    def confidence(self, slot, context_ids):
        return None


REPEATS = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4]


def test_each_request_has_the_draft_of_one_of_them():
    nines = _Nines()
    drafter = LookupFirst(nines, 4)
    requests = [request_for(REPEATS, 3, 0), request_for([1, 2, 3, 8, 1, 2, 3], 3, 1), request_for(REPEATS, 0, 2)]
    drafts = drafter.propose(requests)
    assert [draft.token_ids for draft in drafts] == [(5, 6, 7), (9, 9, 9), ()]
    assert nines.told == ["propose 1", "propose 2"]


def test_both_are_told_and_say_how_sure_they_are():
    nines = _Nines()
    drafter = LookupFirst(nines, 4)
    drafter.observe(0, REPEATS, verdict_of([1]))
    found = drafter.confidence(0, REPEATS)
    assert found is not None and found > 1000 and drafter.confidence(1, [1, 2, 3]) is None
    drafter.release(0)
    assert nines.told == ["observe 0", "release 0"] and drafter.proposes_without_confidence
    assert drafter.method == "draft_model"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"method": "ngram"}, "methods that have no weights"),
        ({"method": "ngram", "topology": "tree"}, "methods that have no weights"),
        ({"method": "eagle3", "topology": "tree", "verifier": "match"}, "other verifiers than keyed"),
        ({"method": "eagle3", "topology": "tree", "verifier": "traversal"}, "other verifiers than keyed"),
        ({"method": "eagle3", "lookup_first": 0}, "1 to 64"),
    ],
)
def test_refused(fields, words):
    with pytest.raises(ParameterError, match=words):
        SpeculativeConfig(**{"lookup_first": 4} | fields)
