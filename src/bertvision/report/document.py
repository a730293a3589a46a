"""What a report is made of, in no format yet: sections of blocks. page.py and markdown.py write them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from bertvision.report.ink import render
from bertvision.report.tables import Grid


@dataclass(frozen=True)
class Note:
    """A paragraph that helps to read what stands near it."""

    text: str


@dataclass(frozen=True)
class Heading:
    """The title of some of the blocks of a section."""

    text: str


@dataclass(frozen=True)
class Table:
    """A grid of cells, and in words what it holds."""

    label: str
    grid: Grid


@dataclass(frozen=True)
class Picture:
    """A figure under its file name, what it shows in words, and its two files."""

    name: str
    caption: str
    svg: str
    png: bytes


@dataclass(frozen=True)
class Pictures:
    """Figures that are looked at together."""

    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Code:
    """Text to be copied as it is."""

    text: str


@dataclass(frozen=True)
class Facts:
    """Lines of a label and a text."""

    lines: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Passage:
    """A text in pieces; the kind of a piece says how it is marked: "" not at all, "right" or "wrong"."""

    pieces: Sequence[tuple[str, str]]  # text, kind


@dataclass(frozen=True)
class Fold:
    """Blocks that are shown when asked for."""

    label: str
    blocks: Sequence["Block"]


Block = Note | Heading | Table | Pictures | Code | Facts | Passage | Fold


@dataclass(frozen=True)
class Section:
    """A title and what stands under it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Badge:
    """What a reader must know first: a sentence, and what there is to say about it."""

    sentence: str
    text: str = ""
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Report:
    """All of it: title, badges, the summary's sentences, and the sections."""

    title: str
    badges: Sequence[Badge]
    sentences: Sequence[str]
    sections: Sequence[Section]

    def pictures(self) -> list[Picture]:
        """Every figure, in the order of the page."""
        return [picture for section in self.sections for picture in _pictures(section.blocks)]


@dataclass
class Album:
    """Draws figures under file names of which no two are alike. prefix: goes before each of them."""

    prefix: str = ""
    names: set[str] = field(default_factory=set)

    def draw(self, name: str, caption: str, figure: Figure) -> Picture:
        """The figure as a picture of this album."""
        stem = re.sub(r"[^a-z0-9.]+", "-", f"{self.prefix} {name}".lower()).strip("-.")
        free = next(one for n in range(1, 10_000) if (one := stem if n == 1 else f"{stem}-{n}") not in self.names)
        self.names.add(free)
        return Picture(free, caption, *render(figure, free))

    def volume(self, prefix: str) -> "Album":
        """The same album, for figures with another prefix."""
        return Album(prefix, self.names)


def _pictures(blocks: Sequence[Block]) -> list[Picture]:
    found: list[Picture] = []
    for block in blocks:
        if isinstance(block, Pictures):
            found += block.pictures
        elif isinstance(block, Fold):
            found += _pictures(block.blocks)
    return found
