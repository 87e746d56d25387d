"""One recipe per method: what is trained, on which loss, and how its files look."""

from __future__ import annotations

from draftproof.train.recipes.base import Recipe
from draftproof.train.recipes.dflash import DFlashRecipe
from draftproof.train.recipes.dspark import DSparkRecipe
from draftproof.train.recipes.eagle3 import Eagle3Recipe
from draftproof.train.recipes.mtp import MTPRecipe

__all__ = ["RECIPES", "Recipe"]

RECIPES: dict[str, type[Recipe]] = {
    recipe.method: recipe for recipe in (DFlashRecipe, DSparkRecipe, Eagle3Recipe, MTPRecipe)
}
"""method -> recipe."""
