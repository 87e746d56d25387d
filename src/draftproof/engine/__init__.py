"""The engine: drafts, scores, verifies and commits, for a batch of requests."""
