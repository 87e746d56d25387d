"""What `rejection` and `block` share: the draft's laws, the kernels, and their launches."""
