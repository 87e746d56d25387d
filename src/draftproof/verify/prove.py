"""The proof by enumeration: every verifier, draft law and topology, in rational arithmetic.

    for record in prove():
        print(record.verifier, record.law, record.topology, record.max_error, record.exact)

`record.as_dict()` is ready for JSON. What runs is the production verifiers' own code, on Fractions and through an
oracle (see `exact`). The mutants, wrong rules that the same enumeration must catch, are in `mutants.run_mutants`.

A record is exact if, on every instance, the law of what the passes emit equals the product of the target's
conditionals for all sequences, with a difference of exactly 0; and, for a replay verifier, if on every random path the
emitted tokens are those of plain decoding with the same noise.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from draftproof.verify import get_verifier
from draftproof.verify.combinations import Combination, combinations
from draftproof.verify.exact import enumerate_steps, speculative_step
from draftproof.verify.proposals import Proposer, Ranked, Sampled, SampledTree, every_fixed
from draftproof.verify.tables import Pair, Reformed

PROMPT = (0,)


@dataclass(frozen=True, slots=True)
class ProofRecord:
    """What one combination gave.

    law: of the drafts; see `combinations.DraftLaw`. topology: "chain 3", "tree 2-1". passes: consecutive passes with
    state carried over. instances: pairs of tables. paths: random paths covered, in all instances. max_error: the
    largest difference in the probability of one sequence, an exact fraction as a string. replay_mismatches: paths
    whose tokens are not plain decoding's, None for an exact-law verifier.
    """

    verifier: str
    guarantee: str
    law: str
    topology: str
    passes: int
    instances: int
    paths: int
    max_error: str
    replay_mismatches: int | None
    exact: bool

    def as_dict(self) -> dict[str, Any]:
        """The fields, ready for JSON."""
        return asdict(self)


def prove(
    *,
    quick: bool = False,
    processes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[ProofRecord]:
    """Runs the proof and yields a record for each combination, in a fixed order.

    quick: a subset that takes seconds. processes: worker processes; None for two where there are two cores, 1 to stay
    in this one (quick runs always do). Workers import the calling script, as `multiprocessing` with "spawn" does.
    progress: called with (combinations done, combinations in all) after each.
    """
    jobs = list(combinations(quick=quick))
    num_processes = min(2, os.cpu_count() or 1) if processes is None else processes
    if quick or num_processes <= 1:
        yield from _counted(map(run_combination, jobs), len(jobs), progress)
        return
    # Spawned, not forked: the sampler chain's library may hold threads here.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, mp_context=context) as pool:
        yield from _counted(pool.map(run_combination, jobs), len(jobs), progress)


def _counted(
    records: Iterator[ProofRecord], num_records: int, progress: Callable[[int, int], None] | None
) -> Iterator[ProofRecord]:
    for num_done, record in enumerate(records, start=1):
        yield record
        if progress is not None:
            progress(num_done, num_records)


def run_combination(combination: Combination) -> ProofRecord:
    """Enumerates one combination over all its instances."""
    verifier = get_verifier(combination.verifier)
    replay = verifier.guarantee == "replay"
    num_paths = num_mismatches = 0
    max_error = Fraction(0)
    for instance in combination.instances:
        pair = instance.pair(greedy=combination.verifier == "greedy")
        for drafter in _drafters(combination, pair):
            step = speculative_step(verifier, pair.target, drafter)
            found = enumerate_steps(step, pair.target, combination.num_passes, PROMPT, replay=replay)
            num_paths += found.num_paths
            num_mismatches += found.num_replay_mismatches
            max_error = max(max_error, found.max_error)
    return ProofRecord(
        verifier=combination.verifier,
        guarantee=verifier.guarantee,
        law=combination.law,
        topology=combination.topology,
        passes=combination.num_passes,
        instances=len(combination.instances),
        paths=num_paths,
        max_error=str(max_error),
        replay_mismatches=num_mismatches if replay else None,
        exact=max_error == 0 and num_mismatches == 0,
    )


def _drafters(combination: Combination, pair: Pair) -> Iterator[Proposer]:
    shape = combination.shape
    if combination.law == "PointMass":
        return iter([Ranked(pair.draft, shape)])
    if combination.law == "every draft":
        return every_fixed(shape, pair.target.vocab_size)
    if combination.law == "Dense, target's field":
        return iter([Sampled(Reformed(pair.draft, "Dense"), shape, share_target_field=True)])
    siblings = get_verifier(combination.verifier).siblings
    table = Reformed(pair.draft, combination.law)
    return iter([Sampled(table, shape) if siblings is None else SampledTree(table, shape, siblings)])
