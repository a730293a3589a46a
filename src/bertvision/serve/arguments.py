"""Arguments of a reader: questions, contexts and texts in all their shapes, and options; checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

from bertvision.errors import UserError, nearest
from bertvision.serve.config import TaskConfig

REMOVED = {  # options of the pipeline that transformers 5 removed, for which a reader has no use
    "doc_stride": "windows are cut as in training",
    "max_seq_len": "windows are cut as in training",
    "max_question_len": "a question is cut only if it leaves no room for the text",
    "padding": "batches hold texts of similar lengths",
    "batch_size": "batches are filled by tokens",
}
OPTIONS = (
    *("top_k", "no_answer_threshold", "answerable", "layers"),
    *("max_answer_len", "handle_impossible_answer", "align_to_words"),
)
Asked = str | Sequence[str] | Mapping[str, str] | Sequence[Mapping[str, str]] | None


@dataclass(frozen=True, slots=True)
class Options:
    """How answers are wanted. limit: "no answer" above this probability; None: by the reader's own threshold.
    answer_tokens: most tokens of an answer, 0: as the reader was tuned. words: answers are extended to whole words.
    answerable: the share of questions expected to have an answer; None: as in the reader's tune set."""

    top_k: int = 1
    limit: float | None = None
    layers: bool = False
    answer_tokens: int = 0
    words: bool = True
    answerable: float | None = None

    @classmethod
    def of(cls, **given: Any) -> "Options":
        """From the keyword arguments of a call, see `Reader.__call__`; UserError unless all are possible."""
        for name in given:
            if name in REMOVED:
                raise UserError(f"{name}: {REMOVED[name]}; leave it out")
            if name not in OPTIONS:
                raise UserError(f"{name}: a reader has no such option; {nearest(name, OPTIONS)}")
        top_k, longest = given.get("top_k", 1), given.get("max_answer_len")
        for name, count in (("top_k", top_k), ("max_answer_len", 1 if longest is None else longest)):
            if isinstance(count, bool) or not isinstance(count, Integral) or count < 1:
                raise UserError(f"{name}: must be a whole number, at least 1, not {count!r}")
        limit = given.get("no_answer_threshold")
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, Real) or not 0 <= float(limit) <= 1):
            raise UserError(f"no_answer_threshold: must be a probability from 0 to 1, not {limit!r}")
        expected = given.get("answerable")
        if expected is not None:
            expected = check_answerable(expected)
        if given.get("handle_impossible_answer") in (False, 0):
            if limit is not None:
                raise UserError("handle_impossible_answer: False is no_answer_threshold = 1; give only one of them")
            limit = 1.0
        limit = None if limit is None else float(limit)
        words = bool(given.get("align_to_words", True))
        return cls(int(top_k), limit, bool(given.get("layers")), int(longest or 0), words, expected)

    def over(self, config: TaskConfig) -> TaskConfig:
        """A task's configuration with these options applied."""
        if self.answerable is not None and config.verb == "answer":
            config = config.assuming(self.answerable)
        if not self.answer_tokens:
            return config
        return replace(config, decoding=replace(config.decoding, answer_tokens=self.answer_tokens))


def check_answerable(share: Any) -> float:
    """A share of questions, between 0 and 1 and neither of them."""
    if isinstance(share, bool) or not isinstance(share, Real) or not 0 < float(share) < 1:
        raise UserError(f"answerable: must be a share between 0 and 1, not {share!r}")
    return float(share)


def pairs_of(question: Asked, context: str | Sequence[str] | None) -> tuple[list[tuple[str, str]], bool]:
    """(question, context) pairs, and whether several were asked for, so that a list is returned even for one."""
    if isinstance(question, Mapping):
        if context is not None:
            raise UserError("context: is in the dictionary already; give it there or apart, not both")
        return [_pair(question)], False
    if context is None:
        if isinstance(question, Sequence) and not isinstance(question, str):
            return [_pair(one) for one in question], True
        raise UserError("context: give the text to look in, as reader(question=..., context=...)")
    if question is None:
        raise UserError("question: give what is asked, as reader(question=..., context=...)")
    return _aligned({"question": question, "context": context})


def check_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """UserError unless all are strings and no question is blank. A blank context is fine: it answers nothing."""
    for question, context in pairs:
        _check_string("question", question)
        _check_string("context", context)
        if not question.strip():
            raise UserError("question: is empty; ask something")


def text_pairs(a: str | Sequence[str], b: str | Sequence[str] | None) -> tuple[list[tuple[str, ...]], bool]:
    """Texts, or pairs of texts where there is a `b`, and whether several were given."""
    examples, several = _aligned({"texts": a} | ({} if b is None else {"pairs": b}))
    for text in (text for texts in examples for text in texts):
        _check_string("text", text)
    return examples, several


def _pair(one: Any) -> tuple[str, str]:
    if not isinstance(one, Mapping) or not {"question", "context"} <= set(one):
        raise UserError('give each question as {"question": ..., "context": ...}, or name question and context apart')
    return one["question"], one["context"]


def _aligned(given: Mapping[str, Any]) -> tuple[list[Any], bool]:
    """Tuples of one text from each, and whether any is a list; a single string goes with every entry of the others."""
    for name, value in given.items():
        if not isinstance(value, Sequence) or isinstance(value, bytes):
            raise UserError(f"{name}: must be a string or a list of strings, not {type(value).__name__}")
    sizes = {len(value) for value in given.values() if not isinstance(value, str)}
    if len(sizes) > 1:
        raise UserError(f"{' and '.join(given)}: lists of {' and '.join(map(str, sorted(sizes)))}; give equally many")
    size = sizes.pop() if sizes else None
    columns = [[value] * (1 if size is None else size) if isinstance(value, str) else value for value in given.values()]
    return list(zip(*columns)), size is not None


def _check_string(what: str, value: Any) -> None:
    if not isinstance(value, str):
        raise UserError(f"{what}: must be a string, not {type(value).__name__}")
