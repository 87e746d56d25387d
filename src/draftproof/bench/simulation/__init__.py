"""Rules for drafts over Markov targets, simulated many sequences at a time: which one emits most tokens per pass.

Nothing of the engine is used: the rules are written again, over arrays, so that a ranking seen here and one seen in the
engine can be held against each other, and neither can share the other's mistake.
"""
