"""Backbone: batch -> States. The only folder that imports transformers."""
