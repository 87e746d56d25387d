"""`python -m draftproof.cli`."""

from draftproof.cli import main

if __name__ == "__main__":
    main(prog_name="draftproof")
