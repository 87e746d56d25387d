"""Layers with a recurrent state: gated delta rule, state-space models, short convolutions.

The model's own code computes everything that treats tokens alike. What mixes them, a causal convolution and a
recurrence, is computed here for the tokens of all requests, segment by segment and token by token (`forward.py`). So a
token's result depends on its own sequence alone, and the same steps over the same inputs give the same bits, in a
plain forward, a verified one and a rewind alike.

A rewind can't be arithmetic on a length, since a state holds all tokens at once. The inputs of the recurrence are
recorded for the tokens that may be taken back, and the steps over those that stay are run again (`states.py`); the
convolution's state is a slice of its recorded inputs.

- `functions.py`: how transformers' code is led here.
- `steps.py`: one step of each recurrence. `scan.py`: steps of many segments together. `convolution.py`.
"""
