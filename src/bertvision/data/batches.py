"""Windows -> batches: a token budget over length buckets, deterministic from the seed, resumable at any step; and rows
of batches put back in the order of the windows."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bertvision.data.windows import Windows

if TYPE_CHECKING:  # slow to import, and an exported reader runs without it
    from torch import Tensor

POOL = 64  # batches in a bucket: enough to sort lengths together, few enough to keep the order random
BLUR = 0.02  # noise on the lengths that are sorted by, so that batches of a small set differ between epochs


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of windows, padded at the end of each row to the longest.

    index: (B,) window numbers. ids, types: (B, S) int64. mask: (B, S) bool. targets: (B, ...). full: whether no row is
    padded, known without asking the device; None = see the mask. second: (B,) as of Windows.
    """

    index: NDArray[np.int64]
    ids: "Tensor"
    types: "Tensor"
    mask: "Tensor"
    targets: "Tensor"
    full: bool | None = None
    second: "Tensor | None" = None

    @property
    def tokens(self) -> int:
        """Real tokens, padding not counted."""
        return int(self.mask.sum())


def gather(windows: Windows, index: NDArray[np.int64], pad: int = 0) -> dict[str, NDArray]:
    """{"ids", "types": (B, S) int64, "mask": (B, S) bool} of the windows in `index`, from the flat arrays at once."""
    starts = windows.starts[index]
    lengths = windows.starts[index + 1] - starts
    column = np.arange(lengths.max(initial=1))
    mask = column < lengths[:, None]  # (B, S)
    tokens = np.where(mask, starts[:, None] + column, 0)
    ids, types = np.where(mask, windows.ids[tokens], pad), np.where(mask, windows.types[tokens], 0)
    return {"ids": ids.astype(np.int64), "types": types.astype(np.int64), "mask": mask}


def collate(windows: Windows, index: NDArray[np.int64], pad: int = 0) -> Batch:
    """The batch of the windows in `index`, as tensors."""
    from torch import from_numpy

    arrays = gather(windows, index, pad)
    tensors = {name: from_numpy(array) for name, array in arrays.items()}
    second = None if windows.second is None else from_numpy(windows.second[index])
    targets, full = from_numpy(windows.targets[index]), bool(arrays["mask"].all())
    return Batch(index, **tensors, targets=targets, full=full, second=second)


class Ragged:
    """Rows of numbers for N windows that come in any order, one window after the other, without padding.

    starts: (N + 1,) where the rows of each window begin. fp32, so that what is computed from them later is what was
    computed at once. Logits of spans take 8 bytes per token and member: about 17 MB for 12,000 windows of 175 tokens.
    """

    def __init__(self, starts: NDArray[np.int64], columns: int) -> None:
        import torch

        self.starts, self.values = starts, torch.zeros(int(starts[-1]), columns, dtype=torch.float32)

    def add(self, index: NDArray[np.int64], rows: "Tensor") -> None:
        """Puts the rows of the windows `index`, (rows of all of them, columns), in their place."""
        first, lengths = self.starts[index], self.starts[index + 1] - self.starts[index]
        shift = first - (np.cumsum(lengths) - lengths)  # from a row's number among `rows` to that in `values`
        positions = np.repeat(shift, lengths) + np.arange(int(lengths.sum()))
        self.values[positions] = rows.to(self.values)


class BatchPlan:
    """All batches of a training: `plan[step]` is an array of window numbers.

    A batch has at most `batch_size` windows and `batch_tokens` tokens with padding (a longer window goes alone).
    counted: (N,) tokens of each window that count, where not all do. Epochs may be fractional. The same arguments
    always give the same plan, so a position in it is one number.
    """

    def __init__(
        self,
        lengths: NDArray[np.int64],
        *,
        epochs: float,
        batch_size: int,
        batch_tokens: int,
        seed: int,
        counted: NDArray[np.int64] | None = None,
    ) -> None:
        self._lengths, self._counted = lengths, lengths if counted is None else counted
        self._limits = batch_size, batch_tokens
        self.batches: list[NDArray[np.int64]] = []
        wanted = round(epochs * len(lengths))
        for epoch in range(int(np.ceil(epochs)) if len(lengths) else 0):
            self.batches += self._epoch(np.random.default_rng([seed, epoch]))
        self.seen = np.cumsum([len(batch) for batch in self.batches])  # windows seen after each step
        steps = int(np.searchsorted(self.seen, wanted)) + 1 if wanted else 0
        self.batches, self.seen = self.batches[:steps], self.seen[:steps]

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, step: int) -> NDArray[np.int64]:
        return self.batches[step]

    def steps_at(self, epoch: float) -> int:
        """Number of steps after which `epoch` (a fraction, 1 = the whole set once) is reached."""
        wanted = round(epoch * len(self._lengths))
        return min(int(np.searchsorted(self.seen, wanted)) + 1, len(self)) if wanted else 0

    def _epoch(self, random: np.random.Generator) -> list[NDArray[np.int64]]:
        order = random.permutation(len(self._lengths))
        batches: list[NDArray[np.int64]] = []
        pool = self._limits[0] * POOL
        for start in range(0, len(order), pool):
            bucket = order[start : start + pool]
            blurred = self._lengths[bucket] * random.uniform(1 - BLUR, 1 + BLUR, len(bucket))
            bucket = bucket[np.argsort(blurred, kind="stable")]
            batches += cut(bucket, self._counted, *self._limits)
        return [batches[i] for i in random.permutation(len(batches))]


def cut(order: NDArray[np.int64], lengths: NDArray[np.int64], batch_size: int, batch_tokens: int) -> list[NDArray]:
    """Cuts windows, roughly sorted by length, into batches within both limits."""
    batches, start, longest = [], 0, 0
    for end, length in enumerate(lengths[order].tolist()):
        longest = max(longest, length)
        size = end - start + 1
        if size > 1 and (size > batch_size or longest * size > batch_tokens):
            batches.append(order[start:end])
            start, longest = end, length
    if start < len(order):
        batches.append(order[start:])
    return batches


def by_length(lengths: NDArray[np.int64], batch_tokens: int, batch_size: int = 1 << 30) -> list[NDArray[np.int64]]:
    """Batches for inference: all windows once, longest first, so that a lack of memory shows early."""
    return cut(np.argsort(-lengths, kind="stable"), lengths, batch_size, batch_tokens)


def nested_fraction(count: int, fraction: float, seed: int) -> NDArray[np.int64]:
    """Sorted numbers of a share of `count` examples; a smaller share with the same seed is a subset of a larger."""
    if fraction >= 1:
        return np.arange(count)
    kept = max(1, round(fraction * count)) if count else 0
    return np.sort(np.random.default_rng([seed, 0x5EED]).permutation(count)[:kept])
