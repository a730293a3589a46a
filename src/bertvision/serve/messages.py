"""What goes over the wire: the server's answers, its one form of error, and the texts it takes."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError


class Problem(BaseModel):
    """Why a request was not answered."""

    detail: str = Field(description="One line: what is wrong and what to do.")


class Candidate(BaseModel):
    """A stretch of the context, or "" where "no answer" is the better guess."""

    answer: str
    score: float = Field(ge=0, le=1, description="Probability.")
    start: int = Field(ge=0, description="Where the answer begins in the context, in Unicode code points.")
    end: int = Field(ge=0, description="Where it ends: context[start:end] is the answer.")
    no_answer_score: float = Field(ge=0, le=1, description="Probability that the context does not hold the answer.")
    layers: list[float] | None = Field(None, description="The share of each layer of the encoder in this answer.")


class Answered(BaseModel):
    """The candidates for one question."""

    question: str
    candidates: list[Candidate] = Field(description="The best first.")


class Answers(BaseModel):
    """The answer to a request with one or many questions."""

    answers: list[Answered] = Field(description="One for each question, in order.")


class Labelled(BaseModel):
    """The most probable label of one text."""

    label: str
    score: float = Field(ge=0, le=1, description="Its probability.")
    scores: dict[str, float] = Field(description="The probability of every label.")


class Labels(BaseModel):
    """The answer to a request with one or many texts."""

    labels: list[Labelled] = Field(description="One for each text, in order.")


class Scores(BaseModel):
    """The answer to a request with one or many pairs of texts."""

    scores: list[float] = Field(description="One for each pair, in order.")


class Health(BaseModel):
    """That the server is up, and what it serves."""

    status: str
    reader: str
    tasks: list[str]


class Strict(BaseModel):
    """A request: a field that is not known, or of another type, is an error, not silently left out or converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True)
class OneOrMany:
    """Makes a field of type list[str] take one text or a list of them.

    longest: characters of one text; most: texts.
    """

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
