"""Device functions that the kernels share: noise, rows of logits, passes over tiles, selection."""
