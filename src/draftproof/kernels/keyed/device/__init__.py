"""The kernels of `verify_keyed` after the read, in the order of their launches: pick, (sum), walk."""
