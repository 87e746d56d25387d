"""Tables that come from logits through the sampler chain, so that penalties, masks and filters are on in a proof.

A chain's float law is read as the rationals that its floats are, and normalised: the table is then the exact law that
plain decoding and every verified row are measured against. What a row has seen, samplers' states included, is built
token by token, as plain decoding builds it; a verifier's rows come from `sampling.laws_along`, as in the engine.

With XTC a law depends on its position's coin. The coin is then drawn inside the enumeration, by the chain itself and
with the key that it uses, and the expected law is the mixture over independent coins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

from draftproof.core import ROOT, Draft, Key, Law, Noise, Number, PointMass, Weights
from draftproof.verify.chain_settings import CHAIN_SETTINGS
from draftproof.verify.oracle import WHOLE, Interval, as_fraction
from draftproof.verify.tables import Context, Pair, Table, law_of, random_logits

if TYPE_CHECKING:
    from draftproof.params import SamplingParams
    from draftproof.sampling import History

Logits = Callable[[Context], Sequence[float]]
"""context -> [V] logits."""


@final
class ChainTable(Table):
    """Laws that the sampler chain gives to a table of logits.

    logits: context -> [V] logits. params: the request's parameters. num_prompt_tokens: how many of a context's first
    tokens are the prompt; the rest is output, for the penalties. history_of: context -> the tokens that the penalties
    see instead of the context's own (mutants pass one; None for the right chain). preset: of the chain.
    """

    def __init__(
        self,
        vocab_size: int,
        logits: Logits,
        params: SamplingParams,
        *,
        num_prompt_tokens: int = 1,
        history_of: Callable[[Context], Context] | None = None,
        preset: str = "vllm",
    ) -> None:
        super().__init__(vocab_size)
        # Imported here: the chain needs torch, which the verifiers and the other tables do without.
        from draftproof.sampling import SamplerChain

        self.chain = SamplerChain(preset)
        self.row_params = self.chain.resolve(params, None, vocab_size)
        self.logits, self._num_prompt_tokens, self._history_of = logits, num_prompt_tokens, history_of
        self._coin = as_fraction(self.row_params.xtc_probability)
        self._histories: dict[Context, History] = {}
        self._coined: dict[Context, tuple[Key | None, Law, Law]] = {}
        self._drafts: dict[tuple[Context, tuple[int, ...], tuple[int, ...]], list[Law]] = {}

    def law_given(self, context: Context, noise: Noise) -> Law:
        key, falls, stays = self._laws_of_coin(context)
        return stays if key is None or not noise.coin(key, self._coin) else falls

    def cases(self, context: Context, coin: Interval) -> list[tuple[Fraction, tuple[Fraction, ...]]]:
        key, falls, stays = self._laws_of_coin(context)
        if key is None:
            return [(Fraction(1), self._exact(stays))]
        if coin != WHOLE:
            return [(Fraction(1), self._exact(falls if coin[1] <= self._coin else stays))]
        return [(self._coin, self._exact(falls)), (1 - self._coin, self._exact(stays))]

    def rows(self, context: Context, draft: Draft, noise: Noise) -> list[Law]:
        # A wrong history is a mutant's, and has no states to advance.
        if self._history_of is not None or self._coin:
            return super().rows(context, draft, noise)
        known = (context, draft.token_ids, draft.parents)
        if known not in self._drafts:
            self._drafts[known] = self.rows_from(self.history(context), context, draft)
        return self._drafts[known]

    def rows_from(self, history: History, context: Context, draft: Draft) -> list[Law]:
        """The rows that the engine's own code makes when it takes `history` for the context's."""
        from draftproof.sampling import laws_along

        paths = [tuple(draft.token_ids[i] for i in draft.path_to(node)) for node in range(ROOT, len(draft))]
        logits = self._tensor([context + path for path in paths])
        found = laws_along(self.chain, logits, self.row_params, history, draft.token_ids, draft.parents)
        # A row that no emitted token can need keeps its place as an error, as in the engine.
        return [self._read(law) if isinstance(law, Law) else law for law in found]  # type: ignore[misc]

    def history(self, context: Context) -> History:
        """What the row after `context` has seen, built token by token."""
        found = self._histories.get(context)
        if found is None:
            if len(context) <= self._num_prompt_tokens:
                found = self.row_params.first_history(context)
            else:
                before = self.history(context[:-1])
                found = before.extended(context[-1:], self._laws_that_gave(context, before))
            self._histories[context] = found
        return found

    def _laws_that_gave(self, context: Context, before: History) -> tuple[Law] | None:
        if not before.needs_laws:
            return None
        law = self._float_law(context[:-1], before)
        # No sequence of this table goes there; as a drafter's table it is asked for contexts that another one made.
        return (law if law.prob(context[-1]) else PointMass(context[-1]),)

    def _law(self, context: Context) -> Law:
        key, falls, stays = self._laws_of_coin(context)
        if key is None:
            return stays
        pairs = zip(self._exact(falls), self._exact(stays), strict=True)
        mixture = [self._coin * fallen + (1 - self._coin) * stayed for fallen, stayed in pairs]
        return law_of(mixture, "Sparse" if 0 in mixture else "Dense")

    def _laws_of_coin(self, context: Context) -> tuple[Key | None, Law, Law]:
        """(the coin's key, the law if it falls, the law if not); no key where the chain asks for no coin."""
        if context not in self._coined:
            seen = context if self._history_of is None else self._history_of(context)
            history = self.history(seen)
            up, down = _Asked(True), _Asked(False)
            falls = self._read(self._float_law(context, history, up))
            stays = self._read(self._float_law(context, history, down))
            self._coined[context] = (up.key, falls, stays)
        return self._coined[context]

    def _float_law(self, context: Context, history: History, noise: Noise | None = None) -> Law:
        return self.chain.laws(self._tensor([context]), self.row_params, [history], noise=noise)[0]

    def _tensor(self, contexts: Sequence[Context]) -> Any:
        import torch

        return torch.tensor([list(self.logits(context)) for context in contexts], dtype=torch.float32)

    def _read(self, law: Law) -> Law:
        if isinstance(law, PointMass):
            return law
        probs = self._exact(law)
        return law_of(probs, "Sparse" if 0 in probs else "Dense")

    def _exact(self, law: Law) -> tuple[Fraction, ...]:
        weights = [as_fraction(law.prob(token_id)) for token_id in range(self.vocab_size)]
        total = sum(weights, Fraction(0))
        return tuple(weight / total for weight in weights)


class _Asked:
    """A coin with a given answer, which remembers the key that it was asked with."""

    def __init__(self, answer: bool) -> None:
        self.answer = answer
        self.key: Key | None = None

    def coin(self, key: Key, numerator: Number, denominator: Number = 1) -> bool:
        self.key = key
        return self.answer

    def choice(self, key: Key, weights: Weights, token_ids: Any = None) -> int:
        raise NotImplementedError("a chain asks for coins alone")


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
