"""Records -> windows: pairs of question and context cut to the encoder's length, as flat arrays without padding."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bertvision.data.squad import Record
from bertvision.errors import UserError

logger = logging.getLogger("bertvision")

LAST_SPACE = 0x3000  # the highest code of white space
CHUNK = 4096  # texts encoded at a time: what the tokenizer makes of a text is many times heavier than its ids
IS_SPACE = np.array([chr(code).isspace() for code in range(LAST_SPACE + 2)])


@dataclass(frozen=True, slots=True)
class Frame:
    """The special tokens a tokenizer puts around a pair, and the type id of each of the five stretches.

    BERT: prefix [CLS], middle [SEP], suffix [SEP]; RoBERTa: <s>, </s></s>, </s>. Around a single text there are a
    prefix and a suffix, and no middle.
    """

    prefix: tuple[int, ...]
    middle: tuple[int, ...]
    suffix: tuple[int, ...]
    types: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.prefix) + len(self.middle) + len(self.suffix)

    @classmethod
    def of(cls, tokenizer: Tokenizer, pair: bool = True) -> "Frame":
        """Reads the frame off one encoded pair, or text, so that no family has to be known by name."""
        if not pair:
            return cls._of_text(tokenizer)
        encoded = tokenizer.encode("a", "b")
        owner = [
            -1 if special else sequence for special, sequence in zip(encoded.special_tokens_mask, encoded.sequence_ids)
        ]
        if 0 not in owner or 1 not in owner or owner[0] != -1:
            raise UserError("this tokenizer does not frame a pair as [CLS] a [SEP] b [SEP]; choose another encoder")
        first, second = owner.index(0), owner.index(1)
        after_first = first + owner.count(0)
        after_second = second + owner.count(1)
        ids, kinds = encoded.ids, encoded.type_ids
        last = len(ids) - 1
        stretches = (0, first, min(after_first, last), second, min(after_second, last))
        return cls(
            tuple(ids[:first]),
            tuple(ids[after_first:second]),
            tuple(ids[after_second:]),
            tuple(kinds[i] for i in stretches),
        )

    @classmethod
    def _of_text(cls, tokenizer: Tokenizer) -> "Frame":
        encoded = tokenizer.encode("a")
        special, kinds = encoded.special_tokens_mask, encoded.type_ids
        if 0 not in special or special[0] == 0:
            raise UserError("this tokenizer does not frame a text as [CLS] a [SEP]; choose another encoder")
        begin, end = special.index(0), len(special) - special[::-1].index(0)
        kind, last = kinds[begin], kinds[-1]
        return cls(tuple(encoded.ids[:begin]), (), tuple(encoded.ids[end:]), (kinds[0], kind, kind, kind, last))


@dataclass(frozen=True, slots=True)
class Windows:
    """N windows over T tokens in all, flat and unpadded; window n owns tokens starts[n]:starts[n + 1].

    ids, types: (T,). example: (N,) which question a window belongs to. targets: (N, ...) what a task learns.
    context_at, context_end: (N,) where in the window its stretch of the context begins and ends.
    context_token: (N,) the row of `chars` of its first context token; chars: (C, 2) character offsets of
    every token of every distinct context, so that a context shared by many questions is kept once.
    """

    ids: NDArray[np.int32]
    types: NDArray[np.uint8]
    starts: NDArray[np.int64]
    example: NDArray[np.int64]
    context_at: NDArray[np.int64]
    context_end: NDArray[np.int64]
    context_token: NDArray[np.int64]
    chars: NDArray[np.int32]
    targets: NDArray

    def __len__(self) -> int:
        return len(self.example)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N,) tokens of each window."""
        return np.diff(self.starts)

    def with_targets(self, targets: NDArray) -> "Windows":
        """The same windows with something else to learn, (N, ...)."""
        return replace(self, targets=targets)

    def span_chars(self, window: NDArray, first: NDArray, last: NDArray) -> NDArray[np.int64]:
        """Character offsets (..., 2) in the context of token spans first..last (positions in their windows)."""
        shift = self.context_token[window] - self.context_at[window]
        if len(self.chars) == 0:
            return np.zeros((*np.shape(first), 2), dtype=np.int64)
        top = len(self.chars) - 1
        begin = self.chars[np.clip(first + shift, 0, top), 0]
        end = self.chars[np.clip(last + shift, 0, top), 1]
        return np.stack([begin, end], axis=-1).astype(np.int64)


def make_windows(tokenizer: Tokenizer, records: Sequence[Record], max_length: int = 384, overlap: int = 128) -> Windows:
    """Cuts every record into windows of at most `max_length` tokens; neighbours share `overlap` tokens of context.

    targets: (N, 2) first and last token of the first gold answer, (0, 0) = [CLS] where the window does not hold it.
    Questions longer than half a window are trimmed, with a warning.
    """
    if tokenizer.padding is not None or tokenizer.truncation is not None:
        raise ValueError("the tokenizer must neither pad nor truncate; see Backbone.load")
    frame = Frame.of(tokenizer)
    longest_question = (max_length - frame.size) // 2
    if longest_question < 1 or overlap >= max_length - frame.size - longest_question:
        raise UserError(
            f"data.max_length: windows of {max_length} tokens that share {overlap} leave no room for the context; "
            "make data.max_length larger or data.overlap smaller"
        )
    context_of, contexts = _distinct([record.context for record in records])
    question_of, questions = _distinct([record.question for record in records])
    question_ids, _ = _encode(tokenizer, questions)
    context_ids, context_chars = _encode(tokenizer, contexts)
    context_chars = [_without_spaces(text, chars) for text, chars in zip(contexts, context_chars)]
    too_long = sum(len(ids) > longest_question for ids in question_ids)
    if too_long:
        which = "1 question is" if too_long == 1 else f"{too_long} questions are"
        logger.warning("%s longer than %d tokens, cut off there", which, longest_question)
        question_ids = [ids[:longest_question] for ids in question_ids]

    question_sizes = np.array([len(ids) for ids in question_ids], dtype=np.int64)[question_of]  # (records,)
    context_sizes = np.array([len(ids) for ids in context_ids], dtype=np.int64)[context_of]
    example, begin, end = _stretches(context_sizes, max_length - frame.size - question_sizes, overlap)

    ids, types = _assemble(frame, question_ids, context_ids, question_of[example], context_of[example], begin, end)
    context_at = len(frame.prefix) + question_sizes[example] + len(frame.middle)
    lengths = frame.size + question_sizes[example] + end - begin
    context_starts = np.concatenate([[0], np.cumsum([len(chars) for chars in context_chars])]).astype(np.int64)
    answers = _answer_tokens(records, context_of, context_chars)[example]  # (N, 2), -1 where there is none
    held = (answers[:, 0] >= begin) & (answers[:, 1] < end) & (answers[:, 0] >= 0)
    return Windows(
        ids=ids,
        types=types,
        starts=np.concatenate([[0], np.cumsum(lengths)]),
        example=example,
        context_at=context_at,
        context_end=context_at + end - begin,
        context_token=context_starts[context_of[example]] + begin,
        chars=np.concatenate(context_chars) if context_chars else np.zeros((0, 2), np.int32),
        targets=np.where(held[:, None], answers - begin[:, None] + context_at[:, None], 0),
    )


def _distinct(texts: list[str]) -> tuple[NDArray[np.int64], list[str]]:
    """Position of each text among the distinct ones, and those in order of appearance."""
    position: dict[str, int] = {}
    index = np.array([position.setdefault(text, len(position)) for text in texts], dtype=np.int64)
    return index, list(position)


def _stretches(sizes: NDArray, room: NDArray, overlap: int) -> tuple[NDArray, NDArray, NDArray]:
    """Record, and first and end (exclusive) of the context tokens, of every window: (N,) each.

    sizes: (records,) tokens of the context; room: (records,) how many of them a window can take.
    """
    steps = room - overlap
    counts = 1 + np.maximum(0, -(-(sizes - room) // steps))  # windows per record
    example = np.repeat(np.arange(len(sizes)), counts)
    within = np.arange(len(example)) - np.repeat(np.cumsum(counts) - counts, counts)  # number within its record
    begin = within * steps[example]
    return example, begin, np.minimum(begin + room[example], sizes[example])


def _encode(tokenizer: Tokenizer, texts: list[str]) -> tuple[list[NDArray[np.int32]], list[NDArray[np.int32]]]:
    """Of each text the token ids (n,) and their character offsets (n, 2), without special tokens."""
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False) if texts else []
    ids = [np.array(item.ids, np.int32) for item in encoded]
    return ids, [np.array(item.offsets, np.int32).reshape(-1, 2) for item in encoded]


def _without_spaces(text: str, chars: NDArray[np.int32]) -> NDArray[np.int32]:
    """Offsets (n, 2) without white space at either end: many tokenizers count the space before a word to the word.

    A token of white space alone begins where the next word does and ends where the last one did, so that a span that
    begins or ends with it is trimmed as well.
    """
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    space = np.append(IS_SPACE[np.minimum(codes, LAST_SPACE + 1)], False)
    if not (space[chars[:, 0]].any() or space[chars[:, 1] - 1].any()):
        return chars  # BERT's tokens never hold any
    place = np.arange(len(space))
    following = np.minimum.accumulate(np.where(space, len(text), place)[::-1])[::-1]  # the first solid from here on
    behind = np.append(0, np.maximum.accumulate(np.where(space, 0, place + 1)))  # just behind the last solid before
    return np.stack([following[chars[:, 0]], behind[chars[:, 1]]], axis=1).astype(np.int32)


def _assemble(
    frame: Frame,
    question_ids: list[NDArray],
    context_ids: list[NDArray],
    question: NDArray,
    context: NDArray,
    begin: NDArray,
    end: NDArray,
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Writes out all windows one after the other: prefix, question, middle, context[begin:end], suffix."""
    prefix, middle, suffix = (np.array(part, np.int32) for part in (frame.prefix, frame.middle, frame.suffix))
    pieces: list[NDArray] = []
    for q, c, b, e in zip(question.tolist(), context.tolist(), begin.tolist(), end.tolist()):
        pieces += (prefix, question_ids[q], middle, context_ids[c][b:e], suffix)
    if not pieces:
        return np.zeros(0, np.int32), np.zeros(0, np.uint8)
    kinds = np.tile(np.array(frame.types, np.uint8), len(question))
    return np.concatenate(pieces), np.repeat(kinds, [len(piece) for piece in pieces])


def _answer_tokens(records: Sequence[Record], context_of: NDArray, context_chars: list[NDArray]) -> NDArray[np.int64]:
    """(records, 2) first and last context token that the first gold answer touches; -1 where there is none."""
    found = np.full((len(records), 2), -1, dtype=np.int64)
    for row, record in enumerate(records):
        if not record.answers:
            continue
        chars = context_chars[context_of[row]]
        start = record.starts[0]
        first = int(np.searchsorted(chars[:, 1], start, side="right"))  # first token that ends behind the start
        last = int(np.searchsorted(chars[:, 0], start + len(record.answers[0]), side="left")) - 1
        if first <= last:
            found[row] = first, last
    return found


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
    first = _encode_ids(tokenizer, [each[0] for each in texts])
    second = _encode_ids(tokenizer, [each[1] for each in texts]) if pair else [np.zeros(0, np.int32)] * count
    kept = longest_first(_sizes(first), _sizes(second), room)  # (N,), (N,)
    ids, types = _assemble_pairs(frame, first, second, *kept)
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


def _encode_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> list[NDArray[np.int32]]:
    """The token ids of each text, without special tokens."""
    ids: list[NDArray[np.int32]] = []
    for start in range(0, len(texts), CHUNK):
        encoded = tokenizer.encode_batch_fast(list(texts[start : start + CHUNK]), add_special_tokens=False)
        ids += [np.array(item.ids, np.int32) for item in encoded]
    return ids


def _sizes(ids: Sequence[NDArray[np.int32]]) -> NDArray[np.int64]:
    return np.array([len(each) for each in ids], dtype=np.int64)


def _assemble_pairs(
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
