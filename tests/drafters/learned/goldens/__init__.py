"""What other packages' code computes for tiny random drafters; `make.py` says how the files came about."""
