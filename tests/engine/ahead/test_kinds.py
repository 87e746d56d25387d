"""What kernels requests ask for, remembered for the last batch."""

import dataclasses

from draftproof.engine.ahead.kinds import AskedKinds
from tests.engine.ahead.running import PROMPTS, bench_of, target_of


def test_a_request_is_known_by_itself_and_not_by_its_name(tmp_path):
    bench = bench_of(target_of(), None, tmp_path, ahead=True)
    plain, filtered = (bench.make(PROMPTS[0], top_p=p) for p in (1.0, 0.5))
    filtered = dataclasses.replace(filtered, request_id=plain.request_id)
    kinds = AskedKinds()
    kinds.keep([plain])
    assert kinds.of(plain)["unfiltered"] and not kinds.of(plain)["top_p_alone"]
    assert kinds.of(filtered)["top_p_alone"] and not kinds.of(filtered)["unfiltered"]


def test_what_was_asked_for_once_is_served_for_good(tmp_path):
    bench = bench_of(target_of(), None, tmp_path, ahead=True)
    first, second = bench.make(PROMPTS[0]), bench.make(PROMPTS[0], top_k=3)
    kinds = AskedKinds()
    assert not kinds.with_all_before([first])["lists"]
    both = kinds.with_all_before([second])
    assert both["lists"] and both["races"] and not both["unfiltered"]
    assert kinds.with_all_before([first]) == both


def test_what_the_kernels_do_not_take_is_no_kind(tmp_path):
    bench = bench_of(target_of(), None, tmp_path, ahead=True)
    request = bench.make(PROMPTS[0], repetition_penalty=1.3)
    assert AskedKinds().of(request) is None
