"""A long agent prompt with tools, cut down from the benchmark's 24,000 tokens: speculation changes nothing."""

from benchmarks.long_context import METHODS, SETTINGS, run


def test_speculation_changes_nothing_after_a_long_agent_prompt():
    found = run(700, 8)
    assert found["num_prompt_tokens"] == 700
    assert found["num_runs"] == len(METHODS) * len(SETTINGS) == 12
    assert found["num_different"] == 0
    assert set(found["drafted"]) == set(METHODS) and all(found["drafted"].values())
