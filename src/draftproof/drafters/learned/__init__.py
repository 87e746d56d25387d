"""Drafters with weights of their own, trained for one target: dflash, dspark, mtp, eagle3."""
