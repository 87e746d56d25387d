"""Structured output: which tokens a grammar allows, at every node of a draft, exactly under speculation.

    grammars = Grammars(tokenizer, vocab_size, eos_token_ids)
    cursor = grammars.cursor(params, row_params)       admission
    masks = masks_of(cursor, draft)                    one mask for each of the draft's rows
    cursor = cursor.committed(token_ids)               after the verdict

A grammar's mask is part of the target's law, so a forbidden draft has probability 0 and every verifier treats it as
any other rejected draft.
"""

from draftproof.grammar.admission import Grammars
from draftproof.grammar.cursor import GrammarCursor, Phase
from draftproof.grammar.forced import forced_ids
from draftproof.grammar.masks import masks_of, with_grammar

__all__ = ["GrammarCursor", "Grammars", "Phase", "forced_ids", "masks_of", "with_grammar"]
