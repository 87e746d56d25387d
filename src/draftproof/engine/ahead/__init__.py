"""Steps that run ahead of the host: the device drafts, scores, verifies and commits, and the host reads the tokens
one step behind, while the next step runs already.

A step's draft begins with the token that the step before it has committed, so nothing of it has to wait for the host:
`step.py` is one step over fixed buffers, captured as a graph on a CUDA device. What the host alone can do (stop rules,
text, admission) happens a step later; what a late stop cuts is taken back by a rewind (`loop.py`). Under a verifier
with the replay guarantee the text can't depend on any of this, and only such requests run ahead.
"""
