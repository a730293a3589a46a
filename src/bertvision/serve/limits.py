"""What one request, and all of them together, may ask of the server."""

import math
from dataclasses import dataclass, fields

from bertvision.errors import UserError


@dataclass(frozen=True)
class Limits:
    """Every number an operator may set; the schema in /openapi.json, the page and the queue all follow it."""

    body: int = 1 << 20
    """Bytes of a request's body."""
    questions: int = 64
    """Questions (or texts, or pairs) in one request."""
    question: int = 1_000
    """Characters of one question."""
    context: int = 100_000
    """Characters of a context, or of a text to classify."""
    top_k: int = 20
    """Candidates for one question."""
    queue: int = 256
    """Questions that wait for the model, of all requests together."""
    batch_tokens: int = 4_096
    """Tokens of one pass of the model; a question that is longer runs alone. 1 switches batching off."""
    timeout: float = 30.0
    """Seconds a request may take before it is given up, and its head to arrive."""
    connections: int = 1_000
    """Connections at the same time; who comes on top is refused."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0 < getattr(self, field.name) < math.inf:
                raise UserError(f"limit {field.name}: must be above 0 and finite, not {getattr(self, field.name)}")
        if self.queue < self.questions:
            raise UserError(
                f"limit queue: {self.queue} questions can wait but one request may ask {self.questions}; "
                "raise --queue or lower --max-questions"
            )
