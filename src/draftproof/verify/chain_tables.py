"""Tables that come from logits through the sampler chain, so that penalties, masks and filters are on in a proof.

A chain's float law is read as the rationals that its floats are, and normalised: the table is then the exact law that
plain decoding and every verified row are measured against.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, final

from draftproof.core import Law, PointMass
from draftproof.verify.oracle import as_fraction
from draftproof.verify.tables import Context, Pair, Table, law_of, random_logits

if TYPE_CHECKING:
    from draftproof.params import SamplingParams

Logits = Callable[[Context], Sequence[float]]
"""context -> [V] logits."""

CHAIN_SETTINGS: Final[Mapping[str, Mapping[str, object]]] = {
    "repetition, presence and frequency penalties": {
        "repetition_penalty": 1.5,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.7,
    },
    "top-k 2, top-p 0.9, temperature 0.7": {"top_k": 2, "top_p": 0.9, "temperature": 0.7},
    "min-p 0.3, presence penalty 1": {"min_p": 0.3, "presence_penalty": 1.0},
    "logit bias, allowed tokens, frequency penalty": {
        "logit_bias": {0: 1.5},
        "allowed_token_ids": [0, 1],
        "frequency_penalty": 1.0,
    },
}
"""SamplingParams' fields, by a name for messages."""


@final
class ChainTable(Table):
    """Laws that the sampler chain gives to a table of logits.

    logits: context -> [V] logits. params: the request's parameters. num_prompt_tokens: how many of a context's first
    tokens are the prompt; the rest is output, for the penalties. history_of: context -> the tokens that the penalties
    see instead of the context's own (mutants pass one; None for the right chain).
    """

    def __init__(
        self,
        vocab_size: int,
        logits: Logits,
        params: SamplingParams,
        *,
        num_prompt_tokens: int = 1,
        history_of: Callable[[Context], Context] | None = None,
    ) -> None:
        super().__init__(vocab_size)
        # Imported here: the chain needs torch, which the verifiers and the other tables do without.
        from draftproof.sampling import SamplerChain

        self._chain = SamplerChain()
        self._row = self._chain.resolve(params, None, vocab_size)
        self._logits, self._num_prompt_tokens, self._history_of = logits, num_prompt_tokens, history_of

    def _law(self, context: Context) -> Law:
        import torch

        from draftproof.sampling import History

        seen = context if self._history_of is None else self._history_of(context)
        history = History(seen[: self._num_prompt_tokens], seen[self._num_prompt_tokens :])
        logits = torch.tensor([list(self._logits(context))], dtype=torch.float32)
        law = self._chain.laws(logits, self._row, [history])[0]
        if isinstance(law, PointMass):
            return law
        weights = [as_fraction(law.prob(token_id)) for token_id in range(self.vocab_size)]
        total = sum(weights, Fraction(0))
        return law_of([weight / total for weight in weights], "Sparse" if 0 in weights else "Dense")


def chain_pair(setting: str, vocab_size: int, seed: int, *, greedy: bool = False) -> Pair:
    """Random logits for target and draft, both through the chain with the parameters of `CHAIN_SETTINGS[setting]`.

    greedy: at temperature 0 instead of the setting's.
    """
    from draftproof.params import SamplingParams

    fields: dict[str, Any] = {**CHAIN_SETTINGS[setting], **({"temperature": 0.0} if greedy else {})}
    params = SamplingParams(**fields)
    tables = [
        ChainTable(vocab_size, random_logits(vocab_size, f"{seed} {which}"), params) for which in ("target", "draft")
    ]
    return Pair(f"{setting}, V={vocab_size}, seed {seed}", *tables)
