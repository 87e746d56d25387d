"""Benchmarks that are verbs of the command line."""
