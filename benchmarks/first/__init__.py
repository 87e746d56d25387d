"""The parts of benchmarks/first_issue.py, a bar each."""
