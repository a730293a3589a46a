"""A reader as a component of Haystack pipelines: query and documents in, extracted answers out."""

import math
from typing import Any

from bertvision.errors import UserError
from bertvision.serve.reader import Reader

try:
    from haystack import Document, ExtractedAnswer, component, default_from_dict, default_to_dict
except ImportError:
    raise UserError('Haystack is not installed; pip install "bertvision[haystack]"') from None


@component
class BertvisionReader:
    """Finds the answers to a query in documents; sockets as of the extractive reader that Haystack 3 removed."""

    def __init__(
        self, model: str = "pocket", top_k: int = 20, no_answer: bool = True, answerable: float | None = None
    ) -> None:
        """model: a reader's directory, packaged name or hub name. top_k: most answers in all.

        no_answer: add an answer without data, whose score is the probability that no document holds an answer.
        answerable: share of documents expected to hold the answer; that of the reader's tune set if None.
        """
        self.model, self.top_k, self.no_answer, self.answerable = model, top_k, no_answer, answerable
        self.reader: Reader | None = None

    def to_dict(self) -> dict[str, Any]:
        """The component as Haystack stores it in a pipeline's file."""
        given = {name: getattr(self, name) for name in ("model", "top_k", "no_answer", "answerable")}
        return default_to_dict(self, **given)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "BertvisionReader":
        """Reads the result of `to_dict`."""
        return default_from_dict(cls, data)

    def warm_up(self) -> None:
        """Loads the reader, once."""
        if self.reader is None:
            self.reader = Reader.from_pretrained(self.model)

    @component.output_types(answers=list[ExtractedAnswer])
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, list[ExtractedAnswer]]:
        """The answers of all documents with a text, the most probable first."""
        self.warm_up()
        assert self.reader is not None
        most = top_k or self.top_k
        texts = [document for document in documents if document.content and document.content.strip()]
        # One more than wanted: "no answer" takes a place among those of a document.
        options: dict[str, Any] = {"top_k": most + 1, "answerable": self.answerable}
        ranked = self.reader.answers([(query, str(document.content)) for document in texts], **options)
        answers = [
            _extracted(query, document, candidate)
            for document, candidates in zip(texts, ranked, strict=True)
            for candidate in candidates
            if candidate["answer"]
        ]
        if self.no_answer:
            nothing = math.prod(candidates[0]["no_answer_score"] for candidates in ranked)
            answers.append(ExtractedAnswer(query=query, score=nothing))
        return {"answers": sorted(answers, key=lambda answer: -answer.score)[:most]}


def _extracted(query: str, document: Document, candidate: dict[str, Any]) -> ExtractedAnswer:
    span = ExtractedAnswer.Span(candidate["start"], candidate["end"])
    return ExtractedAnswer(
        query=query, score=candidate["score"], data=candidate["answer"], document=document, document_offset=span
    )
