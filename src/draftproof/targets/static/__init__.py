"""Forwards of few shapes over buffers that stay where they are, so that a GPU can replay them as captured graphs."""
