"""Requests and responses of the HTTP API, as pydantic models."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError


class Problem(BaseModel):
    """Why a request was not answered."""

    detail: str = Field(description="One line: what is wrong and what to do.")


class Candidate(BaseModel):
    """A span of the context, or "" where "no answer" is more probable."""

    answer: str
    score: float = Field(ge=0, le=1, description="Probability.")
    start: int = Field(ge=0, description="Where the answer begins in the context, in Unicode code points.")
    end: int = Field(ge=0, description="Where it ends: context[start:end] is the answer.")
    no_answer_score: float = Field(ge=0, le=1, description="Probability that the context does not hold the answer.")
    layers: list[float] | None = Field(None, description="The share of each layer of the encoder in this answer.")


class Extracted(BaseModel):
    """An answer as the inference endpoints of the Hugging Face hub give it."""

    answer: str
    score: float = Field(ge=0, le=1, description="The probability of the answer.")
    start: int = Field(ge=0, description="The character of the context where the answer begins.")
    end: int = Field(ge=0, description="The character where it ends.")


class Answered(BaseModel):
    """The candidates for one question."""

    question: str
    candidates: list[Candidate] = Field(description="The best first.")


class Answers(BaseModel):
    """One entry for each question, in order."""

    answers: list[Answered]


class Labelled(BaseModel):
    """The most probable label of one text."""

    label: str
    score: float = Field(ge=0, le=1, description="Its probability.")
    scores: dict[str, float] = Field(description="The probability of every label.")


class Labels(BaseModel):
    """One entry for each text, in order."""

    labels: list[Labelled]


class Entity(BaseModel):
    """A part of a text with a label."""

    label: str
    text: str
    start: int = Field(ge=0, description="Where it begins in the text, in Unicode code points.")
    end: int = Field(ge=0, description="Where it ends: text[start:end] is the entity.")
    score: float = Field(ge=0, le=1, description="The probability of the label of its least probable word.")


class Entities(BaseModel):
    """One entry for each text, in order: its entities."""

    entities: list[list[Entity]]


class Scores(BaseModel):
    """One score for each pair, in order."""

    scores: list[float]


class Health(BaseModel):
    """The server is up; what it serves."""

    status: str
    reader: str
    tasks: list[str]


class Strict(BaseModel):
    """A request: unknown fields and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Open(BaseModel):
    """A request that may have further fields, as the hub's have; values of another type are errors."""

    model_config = ConfigDict(strict=True)


@dataclass(frozen=True)
class OneOrMany:
    """A field of type list[str] that takes one text or a list of them. longest: characters of a text; most: texts."""

    longest: int
    most: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        text = Annotated[str, Field(min_length=1, max_length=self.longest, pattern=r"\S")]
        several = Annotated[list[text], Field(min_length=1, max_length=self.most)]  # type: ignore[valid-type]
        return handler.generate_schema(
            Annotated[several, BeforeValidator(_listed, json_schema_input_type=text | several)]  # type: ignore[operator]
        )


def _listed(value: Any) -> Any:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise PydanticCustomError("one_or_many", "should be a text or a list of texts")
    return value


_PROBLEMS = {
    400: "The body is not JSON in UTF-8.",
    401: "A token is needed.",
    403: "The Host or Origin is not allowed.",
    408: "The body did not arrive in time.",
    413: "The body is too long.",
    422: "A field is missing, wrong or over a limit.",
    503: "The queue is full, or the server is stopping.",
    504: "It took too long.",
}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "model": Problem} for status, text in _PROBLEMS.items()
}
PROBLEMS[503]["headers"] = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}
