"""One recipe per method: what is trained, on which loss, and how its files look."""

from __future__ import annotations

from draftproof.train.recipes.base import Recipe
from draftproof.train.recipes.dflash import DFlashRecipe
from draftproof.train.recipes.dspark import DSparkRecipe

__all__ = ["RECIPES", "Recipe"]

RECIPES: dict[str, type[Recipe]] = {"dflash": DFlashRecipe, "dspark": DSparkRecipe}
"""method -> recipe."""
