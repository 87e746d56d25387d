"""Benchmarks: scripts that anyone can run; each prints JSON with versions and settings."""
