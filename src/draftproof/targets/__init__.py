"""Targets: models that score tokens. `base` states the interface, `load` opens a model."""
