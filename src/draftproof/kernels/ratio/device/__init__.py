"""The kernels of `rejection` and `block`, in the order of their launches: read, measure, (bound), stop, residual;
or read, bracketed, between."""
