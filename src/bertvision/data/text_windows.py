"""Texts and pairs -> windows: one window each, cut to the encoder's length, as flat arrays without padding."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bertvision.data.windows import Frame, Windows
from bertvision.errors import UserError

CHUNK = 4096  # texts encoded at a time: what the tokenizer makes of a text is many times heavier than its ids


def make_text_windows(
    tokenizer: Tokenizer, texts: Sequence[tuple[str, ...]], targets: NDArray, max_length: int = 384
) -> Windows:
    """One window per text or pair of texts, of at most `max_length` tokens. targets: (N, ...) what a task learns.

    A single text loses its end. Of a pair the longer loses its end until both fit, see `longest_first`.
    """
    if tokenizer.padding is not None or tokenizer.truncation is not None:
        raise ValueError("the tokenizer must neither pad nor truncate; see Backbone.load")
    count = len(texts)
    pair = bool(count) and len(texts[0]) == 2
    frame = Frame.of(tokenizer, pair=pair)
    room = max_length - frame.size
    if room < 1 + pair:
        raise UserError(f"data.max_length: windows of {max_length} tokens leave no room for the text; make it larger")
    first = _encode(tokenizer, [each[0] for each in texts])
    second = _encode(tokenizer, [each[1] for each in texts]) if pair else [np.zeros(0, np.int32)] * count
    kept = longest_first(_sizes(first), _sizes(second), room)  # (N,), (N,)
    ids, types = _assemble(frame, first, second, *kept)
    nothing = np.zeros(count, np.int64)
    return Windows(
        ids=ids,
        types=types,
        starts=np.concatenate([[0], np.cumsum(frame.size + kept[0] + kept[1])]).astype(np.int64),
        example=np.arange(count, dtype=np.int64),
        context_at=nothing,
        context_end=nothing,
        context_token=nothing,
        chars=np.zeros((0, 2), np.int32),
        targets=targets,
    )


def longest_first(
    first: NDArray[np.int64], second: NDArray[np.int64], room: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many tokens of each pair stay, (N,) and (N,), where together they have `room`.

    As if tokens were taken off one by one, each from the longer of the two; of equals the second is shortened.
    """
    kept = np.minimum(first, np.maximum(room - second, -(-room // 2)))
    return kept, np.minimum(second, room - kept)


def _encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[NDArray[np.int32]]:
    """The token ids of each text, without special tokens."""
    ids: list[NDArray[np.int32]] = []
    for start in range(0, len(texts), CHUNK):
        encoded = tokenizer.encode_batch_fast(list(texts[start : start + CHUNK]), add_special_tokens=False)
        ids += [np.array(item.ids, np.int32) for item in encoded]
    return ids


def _sizes(ids: Sequence[NDArray[np.int32]]) -> NDArray[np.int64]:
    return np.array([len(each) for each in ids], dtype=np.int64)


def _assemble(
    frame: Frame, first: Sequence[NDArray], second: Sequence[NDArray], keep_first: NDArray, keep_second: NDArray
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """All windows one after the other: prefix, first text, middle, second text, suffix."""
    prefix, middle, suffix = (np.array(part, np.int32) for part in (frame.prefix, frame.middle, frame.suffix))
    pieces: list[NDArray] = []
    for a, b, m, n in zip(first, second, keep_first.tolist(), keep_second.tolist()):
        pieces += (prefix, a[:m], middle, b[:n], suffix)
    if not pieces:
        return np.zeros(0, np.int32), np.zeros(0, np.uint8)
    kinds = np.tile(np.array(frame.types, np.uint8), len(first))
    return np.concatenate(pieces), np.repeat(kinds, [len(piece) for piece in pieces])
