"""Records and texts -> windows: stretches of tokens cut to the encoder's length, as flat arrays without padding."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bertvision.data.squad import Record
from bertvision.errors import UserError, no_panic

logger = logging.getLogger("bertvision")

MOST_SHARED = 0.75  # of a window: question and special tokens need their room, too
CHUNK = 4096  # texts encoded at a time: an encoding takes many times the memory of its ids
LAST_SPACE = 0x3000  # the highest code of white space
IS_SPACE = np.array([chr(code).isspace() for code in range(LAST_SPACE + 2)])
Ids = Sequence[NDArray[np.int32]]


@dataclass(frozen=True, slots=True)
class Frame:
    """The special tokens of a tokenizer around a pair: prefix, first text, middle, second text, suffix.

    BERT: prefix [CLS], middle [SEP], suffix [SEP]; RoBERTa: <s>, </s></s>, </s>. Around a single text there is no
    middle. types: the type id of each of the five stretches.
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
        """Reads the frame off an encoded pair, or text, so that no family has to be known by name."""
        if tokenizer.padding is not None or tokenizer.truncation is not None:
            raise ValueError("the tokenizer must neither pad nor truncate; see Backbone.load")
        encoded = tokenizer.encode("a", "b") if pair else tokenizer.encode("a")
        special, last = encoded.special_tokens_mask, len(encoded.ids) - 1
        owner = [-1 if mark else sequence for mark, sequence in zip(special, encoded.sequence_ids)]
        if 0 not in owner or (pair and 1 not in owner) or owner[0] != -1:
            framed = "a pair as [CLS] a [SEP] b [SEP]" if pair else "a text as [CLS] a [SEP]"
            raise UserError(f"this tokenizer does not frame {framed}; choose another encoder")
        ids, kinds = encoded.ids, encoded.type_ids
        first, end_first = owner.index(0), owner.index(0) + owner.count(0)
        if not pair:
            types = tuple(kinds[i] for i in (0, first, first, first, last))
            return cls(tuple(ids[:first]), (), tuple(ids[end_first:]), types)
        second, end_second = owner.index(1), owner.index(1) + owner.count(1)
        types = tuple(kinds[i] for i in (0, first, min(end_first, last), second, min(end_second, last)))
        return cls(tuple(ids[:first]), tuple(ids[end_first:second]), tuple(ids[end_second:]), types)

    def assemble(self, pairs: Iterable[tuple[NDArray, NDArray]]) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Ids and types of all windows, one after the other. pairs: the ids of the first and the second text."""
        prefix, middle, suffix = (np.array(part, np.int32) for part in (self.prefix, self.middle, self.suffix))
        pieces: list[NDArray] = []
        for first, second in pairs:
            pieces += (prefix, first, middle, second, suffix)
        if not pieces:
            return np.zeros(0, np.int32), np.zeros(0, np.uint8)
        kinds = np.tile(np.array(self.types, np.uint8), len(pieces) // 5)
        return np.concatenate(pieces), np.repeat(kinds, [len(piece) for piece in pieces])


@dataclass(frozen=True, slots=True)
class Windows:
    """N windows over T tokens in all, flat and unpadded; window n owns tokens starts[n]:starts[n + 1].

    ids, types: (T,). example: (N,) the record or text a window belongs to. targets: (N, ...) what a task learns.
    context_at, context_end: (N,) where in the window its stretch of the context begins and ends.
    context_token: (N,) the row of `chars` of its first context token; chars: (C, 2) character offsets of
    every token of every distinct context, so that a context shared by many questions is kept once.
    second: (N,) where the second text of a pair begins, if both are encoded apart, each as if it were alone.
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
    second: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.example)

    @classmethod
    def of_texts(cls, ids: NDArray, types: NDArray, lengths: NDArray, example: NDArray, targets: NDArray) -> "Windows":
        """Windows without a context and its character offsets. lengths: (N,) tokens of each."""
        nothing = np.zeros(len(lengths), np.int64)
        return cls(
            ids=ids,
            types=types,
            starts=_starts(lengths),
            example=example.astype(np.int64),
            context_at=nothing,
            context_end=nothing,
            context_token=nothing,
            chars=np.zeros((0, 2), np.int32),
            targets=targets,
        )

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N,) tokens of each window."""
        return np.diff(self.starts)

    def with_targets(self, targets: NDArray) -> "Windows":
        """The same windows with other targets, (N, ...)."""
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
    Questions longer than half a window are trimmed, with a warning. Where a long question leaves no more room than
    `overlap`, neighbours share half of it.
    """
    frame = Frame.of(tokenizer)
    longest = (max_length - frame.size) // 2  # tokens of a question
    if longest < 1 or overlap > MOST_SHARED * max_length:
        raise UserError(
            f"data.max_length: windows of {max_length} tokens that share {overlap} leave no room for the context; "
            "make data.max_length larger or data.overlap smaller"
        )
    context_of, contexts = _distinct([record.context for record in records])
    question_of, questions = _distinct([record.question for record in records])
    question_ids = _trimmed(_encode(tokenizer, questions)[0], longest)
    context_ids, offsets = _encode(tokenizer, contexts, offsets=True)
    context_chars = [_without_spaces(text, chars) for text, chars in zip(contexts, offsets)]
    question_sizes, context_sizes = _sizes(question_ids)[question_of], _sizes(context_ids)[context_of]  # (records,)
    example, begin, end = _stretches(context_sizes, max_length - frame.size - question_sizes, overlap)
    stretches = zip(question_of[example].tolist(), context_of[example].tolist(), begin.tolist(), end.tolist())
    ids, types = frame.assemble((question_ids[q], context_ids[c][b:e]) for q, c, b, e in stretches)
    context_at = len(frame.prefix) + question_sizes[example] + len(frame.middle)
    context_starts = _starts(_sizes(context_chars))
    answers = _answer_tokens(records, context_of, context_chars)[example]  # (N, 2), -1 where there is none
    is_inside = (answers[:, 0] >= begin) & (answers[:, 1] < end) & (answers[:, 0] >= 0)
    return Windows(
        ids=ids,
        types=types,
        starts=_starts(frame.size + question_sizes[example] + end - begin),
        example=example,
        context_at=context_at,
        context_end=context_at + end - begin,
        context_token=context_starts[context_of[example]] + begin,
        chars=np.concatenate(context_chars) if context_chars else np.zeros((0, 2), np.int32),
        targets=np.where(is_inside[:, None], answers - begin[:, None] + context_at[:, None], 0),
    )


def make_text_windows(
    tokenizer: Tokenizer,
    texts: Sequence[tuple[str, ...]],
    targets: NDArray,
    max_length: int = 384,
    apart: bool = False,
) -> Windows:
    """One window per text or pair of texts, of at most `max_length` tokens. targets: (N, ...) what a task learns.

    A single text loses its end. Of a pair the longer loses its end until both fit, see `longest_first`.
    apart: both texts of a pair stand one behind the other, each framed alone and of at most `max_length` tokens.
    """
    count = len(texts)
    pair = bool(count) and len(texts[0]) == 2
    if apart:
        return _apart(tokenizer, texts, targets, max_length)
    frame = Frame.of(tokenizer, pair=pair)
    room = max_length - frame.size
    if room < 1 + pair:
        raise UserError(f"data.max_length: windows of {max_length} tokens leave no room for the text; make it larger")
    first, _ = _encode(tokenizer, [text[0] for text in texts])
    second, _ = _encode(tokenizer, [text[1] for text in texts]) if pair else ([np.zeros(0, np.int32)] * count, [])
    first_sizes, second_sizes = longest_first(_sizes(first), _sizes(second), room)  # (N,), (N,)
    kept = zip(first, second, first_sizes.tolist(), second_sizes.tolist())
    ids, types = frame.assemble((a[:a_size], b[:b_size]) for a, b, a_size, b_size in kept)
    return Windows.of_texts(ids, types, frame.size + first_sizes + second_sizes, np.arange(count), targets)


def _apart(tokenizer: Tokenizer, texts: Sequence[tuple[str, ...]], targets: NDArray, max_length: int) -> Windows:
    """A window per pair: the first text framed as if it were alone, then the second."""
    if any(len(pair) != 2 for pair in texts):
        raise UserError("pairs are encoded apart here, and this is a single text; give two texts")
    frame = Frame.of(tokenizer, pair=False)
    room = max_length - frame.size
    if room < 1:
        raise UserError(f"data.max_length: windows of {max_length} tokens leave no room for the text; make it larger")
    text_ids, _ = _encode(tokenizer, [text for pair in texts for text in pair])  # first, second, first, second, ...
    ids, types = frame.assemble((text[:room], text[:0]) for text in text_ids)
    lengths = frame.size + np.minimum(_sizes(text_ids), room).reshape(-1, 2)  # (N, 2)
    windows = Windows.of_texts(ids, types, lengths.sum(axis=1), np.arange(len(texts)), targets)
    return replace(windows, second=lengths[:, 0])


def longest_first(
    first: NDArray[np.int64], second: NDArray[np.int64], room: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many tokens of each pair stay, (N,) and (N,), where together they have `room`.

    As if tokens were removed one by one, each from the longer of the two; of equals the second is shortened.
    """
    kept = np.minimum(first, np.maximum(room - second, -(-room // 2)))
    return kept, np.minimum(second, room - kept)


def _distinct(texts: list[str]) -> tuple[NDArray[np.int64], list[str]]:
    """Position of each text among the distinct ones, and those in order of appearance."""
    position: dict[str, int] = {}
    index = np.array([position.setdefault(text, len(position)) for text in texts], dtype=np.int64)
    return index, list(position)


def _trimmed(question_ids: Ids, longest: int) -> Ids:
    """The ids of each question, at most `longest`; a warning says how many were longer."""
    if too_long := sum(len(ids) > longest for ids in question_ids):
        which = "1 question is" if too_long == 1 else f"{too_long} questions are"
        logger.warning("%s longer than %d tokens, cut off there", which, longest)
    return [ids[:longest] for ids in question_ids]


def _sizes(arrays: Ids) -> NDArray[np.int64]:
    return np.array([len(array) for array in arrays], dtype=np.int64)


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n + 1,) where each of n stretches begins, and the end of the last."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _stretches(sizes: NDArray, room: NDArray, overlap: int) -> tuple[NDArray, NDArray, NDArray]:
    """Record, and first and end (exclusive) of the context tokens, of every window: (N,) each.

    sizes: (records,) tokens of the context; room: (records,) how many of them a window can take.
    """
    steps = room - np.where(overlap < room, overlap, room // 2)
    counts = 1 + np.maximum(0, -(-(sizes - room) // steps))  # windows per record
    example = np.repeat(np.arange(len(sizes)), counts)
    within = np.arange(len(example)) - np.repeat(np.cumsum(counts) - counts, counts)  # number within its record
    begin = within * steps[example]
    return example, begin, np.minimum(begin + room[example], sizes[example])


def _encode(tokenizer: Tokenizer, texts: list[str], offsets: bool = False) -> tuple[Ids, Ids]:
    """Token ids (n,) of each text and, if wanted, their character offsets (n, 2), without special tokens."""
    ids, chars = [], []
    encode = tokenizer.encode_batch if offsets else tokenizer.encode_batch_fast
    for start in range(0, len(texts), CHUNK):
        with no_panic("the encoder's tokenizer"):
            encodings = encode(texts[start : start + CHUNK], add_special_tokens=False)
        for encoding in encodings:
            ids.append(np.array(encoding.ids, np.int32))
            if offsets:
                chars.append(np.array(encoding.offsets, np.int32).reshape(-1, 2))
    return ids, chars


def _without_spaces(text: str, chars: NDArray[np.int32]) -> NDArray[np.int32]:
    """Offsets (n, 2) without white space at either end: many tokenizers count the space before a word to the word.

    A token of white space alone begins where the next word does and ends where the last one did, so that a span that
    begins or ends with it is trimmed as well.
    """
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    space = np.append(IS_SPACE[np.minimum(codes, LAST_SPACE + 1)], False)
    if not (space[chars[:, 0]].any() or space[chars[:, 1] - 1].any()):
        return chars  # always so for BERT's tokens
    index = np.arange(len(space))
    following = np.minimum.accumulate(np.where(space, len(text), index)[::-1])[::-1]  # next character not a space
    behind = np.append(0, np.maximum.accumulate(np.where(space, 0, index + 1)))  # just behind the last one before
    return np.stack([following[chars[:, 0]], behind[chars[:, 1]]], axis=1).astype(np.int32)


def _answer_tokens(records: Sequence[Record], context_of: NDArray, context_chars: Ids) -> NDArray[np.int64]:
    """(records, 2) first and last context token that the first gold answer touches; -1 where there is none."""
    spans = np.full((len(records), 2), -1, dtype=np.int64)
    for row, record in enumerate(records):
        if not record.answers:
            continue
        chars = context_chars[context_of[row]]
        start = record.starts[0]
        first = int(np.searchsorted(chars[:, 1], start, side="right"))  # first token that ends behind the start
        last = int(np.searchsorted(chars[:, 0], start + len(record.answers[0]), side="left")) - 1
        if first <= last:
            spans[row] = first, last
    return spans
