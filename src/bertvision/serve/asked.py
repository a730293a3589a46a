"""What a caller may hand to a reader, in all its shapes -> pairs of strings, checked."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertvision.errors import UserError

Asked = str | Sequence[str] | Mapping[str, str] | Sequence[Mapping[str, str]] | None


def pairs_of(question: Asked, context: str | Sequence[str] | None) -> tuple[list[tuple[str, str]], bool]:
    """(question, context) pairs, and whether several were asked for, so that a list is due even for one."""
    if isinstance(question, Mapping):
        return [_pair(question)], False
    if context is None:
        if isinstance(question, Sequence) and not isinstance(question, str):
            return [_pair(one) for one in question], True
        raise UserError("context: give the text to look in, as reader(question=..., context=...)")
    if question is None:
        raise UserError("question: give what is asked, as reader(question=..., context=...)")
    several = not isinstance(question, str) or not isinstance(context, str)
    questions, contexts = _aligned("question", question, "context", context)
    return list(zip(questions, contexts)), several


def text_pairs(a: str | Sequence[str], b: str | Sequence[str] | None) -> tuple[list[tuple[str, ...]], bool]:
    """Texts, or pairs of texts where there is a `b`, and whether several were given."""
    several = not isinstance(a, str) or not (b is None or isinstance(b, str))
    examples: list[tuple[str, ...]]
    if b is None:
        examples = [(a,)] if isinstance(a, str) else [(text,) for text in a]
    else:
        examples = list(zip(*_aligned("texts", a, "pairs", b)))
    for texts in examples:
        for text in texts:
            _check_string("text", text)
    return examples, several


def check_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """UserError unless all are strings and no question is blank. A blank context is fine: it answers nothing."""
    for question, context in pairs:
        _check_string("question", question)
        _check_string("context", context)
        if not question.strip():
            raise UserError("question: is empty; ask something")


def check_options(top_k: int, no_answer_threshold: float | None) -> None:
    """UserError unless both are possible."""
    if isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1:
        raise UserError(f"top_k: must be a whole number from 1 up, not {top_k!r}")
    limit = no_answer_threshold
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 <= limit <= 1):
        raise UserError(f"no_answer_threshold: must be a probability from 0 to 1, not {limit!r}")


def _pair(one: Any) -> tuple[str, str]:
    if not isinstance(one, Mapping) or not {"question", "context"} <= set(one):
        raise UserError('give each question as {"question": ..., "context": ...}, or name question and context apart')
    return one["question"], one["context"]


def _aligned(
    name: str, ones: str | Sequence[Any], other: str, twos: str | Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Both as lists of one length; a single string goes with every entry of the other."""
    for what, value in ((name, ones), (other, twos)):
        if not isinstance(value, str) and not isinstance(value, Sequence):
            raise UserError(f"{what}: must be a string or a list of strings, not {type(value).__name__}")
    if isinstance(ones, str):
        ones = [ones] * (1 if isinstance(twos, str) else len(twos))
    if isinstance(twos, str):
        twos = [twos] * len(ones)
    if len(ones) != len(twos):
        raise UserError(
            f"{name} and {other}: lists of {len(ones)} and {len(twos)}; give as many of one as of the other"
        )
    return list(ones), list(twos)


def _check_string(what: str, value: Any) -> None:
    if not isinstance(value, str):
        raise UserError(f"{what}: must be a string, not {type(value).__name__}")
