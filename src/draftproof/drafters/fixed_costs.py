"""What a pass costs by a table, for requests whose lengths may depend on no clock."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Final

import numpy as np
from numpy.typing import NDArray

from draftproof.drafters.costs import ALONE, Load
from draftproof.errors import ParameterError


class FixedCosts:
    """Costs from a table, so that lengths don't depend on a clock, nor on what shares a pass.

    passes: [max_tokens + 1] relative costs of passes over 1, 2, … tokens. draft_token: of one drafted token.
    Measured times are taken and not used: that is what the table is for.
    """

    wants_plain_pass: Final = False
    num_requests: Final = 1

    def __init__(self, passes: Sequence[float], draft_token: float = 0.0) -> None:
        if not passes or not all(isfinite(cost) and cost > 0 for cost in passes):
            raise ParameterError("cost_table", list(passes), "positive finite costs of passes over 1, 2, … tokens")
        if not (isfinite(draft_token) and draft_token >= 0):
            raise ParameterError("draft_token_cost", draft_token, "a finite cost of 0 or more")
        self._passes = tuple(passes)
        self._draft_token = draft_token

    def of_pass(self, width: int) -> float:
        """The table's entry."""
        return self._passes[width - 1]

    def of_passes(self, most: int) -> NDArray[np.float64]:
        """The table's first entries."""
        return np.array(self._passes[:most])

    def of_plain(self) -> float:
        """The table's first entry."""
        return self._passes[0]

    def of_draft(self, num_tokens: int, *, is_lookup: bool = False) -> float:
        """Proportional to the number of tokens."""
        return self._draft_token * num_tokens

    def observe_pass(self, width: int, seconds: float, load: Load = ALONE) -> None:
        """Not used."""

    def observe_draft(self, num_tokens: int, seconds: float, *, is_lookup: bool = False) -> None:
        """Not used."""
