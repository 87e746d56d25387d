"""Triton kernels of static forwards."""
