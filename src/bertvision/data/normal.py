"""The form in which the official SQuAD metric compares answers."""

import re
import string

ARTICLE = re.compile(r"\b(?:a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)  # ASCII only: a curly quote is part of the answer


def normalize(text: str) -> str:
    """Lower case, without ASCII punctuation, English articles and extra space: what two answers are compared by."""
    bare = text.lower().translate(NO_PUNCTUATION)
    return " ".join(ARTICLE.sub(" ", bare).split())
