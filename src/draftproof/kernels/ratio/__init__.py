"""`verify_rejection` and `verify_block`: the draft's laws, the kernels, their launches and the entry points."""
