"""The routes that ask the model. Requests are typed here, where the limits they are held to are known."""

from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import ConfigDict, Field

from bertvision.errors import nearest
from bertvision.serve.messages import PROBLEMS, Answers, Labels, OneOrMany, Scores, Strict
from bertvision.serve.refusal import Refusal
from bertvision.serve.service import Service

EXAMPLE: Any = {"question": "Where does Ada live?", "context": "Ada Byron lives in London.", "top_k": 2}
WHICH = "Which of the reader's tasks."


def add_answer(app: FastAPI, service: Service) -> None:
    """POST /answer: spans of a context that answer questions."""
    limits = service.limits
    questions = OneOrMany(limits.question, limits.questions)

    class AnswerRequest(Strict):
        model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})
        question: Annotated[list[str], questions] = Field(
            description="One question, or several about the same context."
        )
        context: str = Field(
            min_length=1, max_length=limits.context, pattern=r"\S", description="The text that may hold the answer."
        )
        top_k: int = Field(1, ge=1, le=limits.top_k, description="Most candidates for one question.")
        no_answer_threshold: float | None = Field(
            None, ge=0, le=1, description='Say "no answer" above this probability; the reader\'s own rule if not given.'
        )
        layers: bool = Field(False, description="Say which layers of the encoder spoke.")

    @app.post("/answer", responses=PROBLEMS, response_model_exclude_none=True)
    async def answer(request: AnswerRequest) -> Answers:
        """Finds the answers to questions in a context, or says that there is none."""
        found = await service.answer(
            request.question, request.context, request.top_k, request.no_answer_threshold, request.layers
        )
        pairs = zip(request.question, found, strict=True)
        return Answers.model_validate({"answers": [{"question": asked, "candidates": own} for asked, own in pairs]})


def add_classify(app: FastAPI, service: Service) -> None:
    """POST /classify: a label for a text, or for a pair of texts."""
    names: Any = service.tasks("labels")
    texts = OneOrMany(service.limits.context, service.limits.questions)

    class ClassifyRequest(Strict):
        text: Annotated[list[str], texts] = Field(description="One text, or several.")
        pair: Annotated[list[str], texts] | None = Field(
            None, description="The second text of each, where the reader judges pairs."
        )
        task: str = Field(names[0], description=WHICH, json_schema_extra={"enum": names})

    @app.post("/classify", responses=PROBLEMS)
    async def classify(request: ClassifyRequest) -> Labels:
        """Finds the label of texts, or of pairs of texts."""
        check_task(request.task, names)
        if request.pair is not None:
            check_pairs(request.text, "text", request.pair, "pair")
        return Labels.model_validate({"labels": await service.classify(request.text, request.pair, request.task)})


def add_similarity(app: FastAPI, service: Service) -> None:
    """POST /similarity: how alike two texts are."""
    names: Any = service.tasks("score")
    texts = OneOrMany(service.limits.context, service.limits.questions)

    class SimilarityRequest(Strict):
        a: Annotated[list[str], texts] = Field(description="One text, or several.")
        b: Annotated[list[str], texts] = Field(description="What each is compared with.")
        task: str = Field(names[0], description=WHICH, json_schema_extra={"enum": names})

    @app.post("/similarity", responses=PROBLEMS)
    async def similarity(request: SimilarityRequest) -> Scores:
        """Scores how alike the texts of each pair are."""
        check_task(request.task, names)
        check_pairs(request.a, "a", request.b, "b")
        return Scores(scores=await service.similarity(request.a, request.b, request.task))


def check_task(name: str, names: list[str]) -> None:
    """Refuses a task that the reader does not have."""
    if name not in names:
        raise Refusal(422, f"task: there is no {name!r}; {nearest(name, names)}")


def check_pairs(a: list[str], a_name: str, b: list[str], b_name: str) -> None:
    """Refuses lists that cannot be paired one to one."""
    if len(a) != len(b):
        raise Refusal(422, f"{b_name}: has {len(b)} texts, {a_name} has {len(a)}; they go in pairs")
