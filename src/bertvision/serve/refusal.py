"""Saying no over HTTP: one status, one clear line."""

from collections.abc import Mapping, Sequence
from typing import Any


class Refusal(Exception):
    """A request is not answered. detail: one line on what is wrong and what to do."""

    def __init__(self, status: int, detail: str, *headers: tuple[str, str]) -> None:
        super().__init__(detail)
        self.status, self.headers = status, headers
        # Half a surrogate pair, which JSON can spell but UTF-8 cannot, must not spoil the answer that complains of it.
        self.detail = " ".join(detail.encode("utf-8", "backslashreplace").decode("utf-8").split())


def invalid(errors: Sequence[Mapping[str, Any]]) -> Refusal:
    """A refusal that names every wrong field of a request once. errors: as pydantic lists them."""
    lines: dict[str, str] = {}
    for error in errors:
        where = ".".join(str(part) for part in error["loc"] if part != "body") or "body"
        lines.setdefault(where, _reason(error))
    return Refusal(422, "; ".join(f"{where[:100]}: {reason}" for where, reason in lines.items()))


def _reason(error: Mapping[str, Any]) -> str:
    if error["type"] == "missing":
        return "is missing; send a JSON object, with content-type application/json"
    if error["type"] == "model_attributes_type":
        return "is not a JSON object; send one, with content-type application/json"
    if error["type"] == "extra_forbidden":
        return "there is no such field; see /docs"
    if error["type"] in ("string_pattern_mismatch", "string_too_short"):
        return "is blank"
    if error["type"] == "string_unicode":
        return "holds half a surrogate pair, which is not a character"
    return str(error["msg"]).removeprefix("Input ").removeprefix("Value error, ")
