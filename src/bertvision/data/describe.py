"""What is in a source of data, whatever its kind: counts, labels and lengths."""

from typing import Any

from bertvision.data.examples import example_statistics, is_text, load_examples
from bertvision.data.source import is_synthetic, load_articles
from bertvision.data.squad import statistics
from bertvision.recipe import DataRecipe


def describe(source: str, data: DataRecipe) -> dict[str, Any]:
    """Statistics of a set of questions or texts, ready for JSON; data: where GLUE lies, which columns to read."""
    if is_text(source):
        return example_statistics(load_examples(source, data))
    return statistics(load_articles(source)) | {"synthetic": is_synthetic(source)}
