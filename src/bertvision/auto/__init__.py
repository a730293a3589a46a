"""`bertvision fit`: from a file to the best model that a time allows, without a recipe."""
