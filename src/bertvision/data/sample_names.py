"""Invented names, and chance, for the sample set. A name is a pair of words; the pair decides which split it is in."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

Item = TypeVar("Item")

BUCKETS = {"train": range(6), "tune": range(6, 8), "test": range(8, 10)}
"""A name made of word i and word j belongs to the split whose range holds (i + j) % 10: no name is in two splits."""


class Dice:
    """Chance from a text seed, built on `random()` alone: the one stream that Python promises to keep over versions."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(int.from_bytes(hashlib.sha256(seed.encode()).digest(), "big")).random

    def below(self, count: int) -> int:
        return int(self._random() * count)

    def between(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return low + self.below(high - low + 1)

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def pick(self, items: Sequence[Item]) -> Item:
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        return sorted(items, key=lambda _: self._random())


class Name(NamedTuple):
    """A name, and which of the front words it begins with."""

    text: str
    front: int


@dataclass(frozen=True)
class Names:
    """All names `pattern` makes of a word of `fronts` and a word of `backs`."""

    pattern: str
    fronts: Sequence[str]
    backs: Sequence[str]
    back_alone: bool = False
    """The back word can stand for the whole name, as surnames do: within a paragraph it is used once."""

    def write(self, i: int, j: int) -> str:
        return self.pattern.format(self.fronts[i], self.backs[j])

    def belongs(self, i: int, j: int, split: str) -> bool:
        return (i + j) % 10 in BUCKETS[split] and self.fronts[i] != self.backs[j]

    def draw(self, dice: Dice, split: str, used: set[str], *, front: int | None = None) -> Name:
        """A name of the split that is not in `used`, where it is then added; `front` fixes its first word."""
        while True:
            i = dice.below(len(self.fronts)) if front is None else front
            j = dice.below(len(self.backs))
            name, back = self.write(i, j), self.backs[j]
            if self.belongs(i, j, split) and name not in used and not (self.back_alone and back in used):
                used.update((name, back) if self.back_alone else (name,))
                return Name(name, i)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


WOMEN = _words("""
    Ada Agnes Alice Anna Beatrice Clara Dora Edith Elena Emma Florence Grace Hannah Helen Ida Irene Julia Laura
    Lydia Margaret Martha Mary Nora Olive Rosa Ruth Sarah Sofia Vera Violet
""")
MEN = _words("""
    Adam Albert Arthur Charles Daniel Edgar Edwin Felix Francis George Harold Henry Hugo Isaac Jacob James
    Joseph Leo Martin Oscar Otto Paul Peter Philip Ralph Samuel Simon Thomas Victor Walter
""")
SURNAMES = _words("""
    Abbott Archer Baker Barlow Barton Bell Bennett Bishop Blake Bradley Carter Chapman Clarke Cole Cooper
    Crawford Cross Dalton Dawson Dixon Ellis Farrell Fisher Fletcher Foster Garner Gibson Graham Grant Hale
    Harding Harper Hart Hayes Holland Hudson Hunt Keller Knight Lambert Lawson Marsh Mason Mercer Morgan Murray
    Newton Norris Owen Palmer Parker Pearce Porter Quinn Reed Rhodes Rowe Sawyer Shaw Shepherd Spencer Stone
    Sutton Turner Vance Wagner Walsh Warner Webb Weston
""")

PEOPLE = Names("{} {}", WOMEN + MEN, SURNAMES, back_alone=True)
PLACES = Names(
    "{}{}",
    _words("""
        Alder Ash Barn Beck Black Brad Bright Burn Clay Cran Dun East Elm Fair Fern Glen Green Hart Hazel Heath High
        Kirk Lang Long Maple Marsh Mill Moor New North Oak Red Rush Salt Sand Shel Stan Stone Thorn West Whit Wood
    """),
    _words("""
        brook burgh bury by combe cott dale field ford gate ham haven hill hurst ley mere mouth port stead well
        ton wick worth
    """),
)
RIVERS = Names(
    "the River {}{}",
    _words("Al Bar Cal Dar El Fen Gar Hol Ir Kel Lam Mar Nar Or Pen Rav Sil Tam Ur Ver"),
    _words("ba den der dle en er ick ish la ling ma na ow ra rick sel ter ven wen yne"),
)
FIRMS = Names("{} & {}", SURNAMES, SURNAMES)

BRIGHT = _words("""
    Amber Brave Bright Copper Coral Crimson Distant Emerald Faithful Fearless Gentle Golden Green Grey Happy
    Ivory Jolly Lucky Merry Noble Patient Proud Quiet Rapid Royal Scarlet Silver Swift White Wild
""")
BIRDS = _words("""
    Curlew Dove Eagle Falcon Finch Gannet Goose Hawk Heron Kestrel Lark Magpie Nightingale Osprey Owl Pelican
    Petrel Plover Raven Robin Sparrow Starling Stork Swallow Swan Tern Thrush Wagtail Warbler Wren
""")
SIGNS = _words("""
    Anchor Arrow Atlas Beacon Castle Comet Compass Crescent Crown Diamond Eclipse Fortune Fountain Globe Harvest
    Jupiter Lantern Legend Lion Mercury Meteor Neptune Orion Phoenix Saturn Star Summit Tempest Titan Unicorn
""")
REGIONS = _words("""
    Alden Ardan Bryn Calder Corran Denby Dorran Esker Farne Garrow Harlan Hollin Inver Keld Kerran Lorne Malden
    Merrow Norham Orrin Penna Quoyle Rannoch Selden Skerry Talla Torran Ulver Varden Wharfe
""")
TREASURES = _words("""
    Bells Boats Books Bottles Buttons Carpets Chairs Clocks Coins Dolls Drums Fans Flutes Fossils Glass Gloves
    Hats Insects Keys Kites Knives Lamps Lace Locks Maps Masks Mills Mirrors Pens Pottery Radios Ropes Shells
    Shoes Stamps Tiles Tools Toys Umbrellas Watches
""")
STORY_WORDS = _words("""
    Autumn Borrowed Broken Burning Clockmaker's Crooked Empty Eleventh Forgotten Frozen Glass Hidden Hollow Last
    Lonely Lost Midnight Narrow Painted Paper Salt Secret Seventh Silent Sleeping Stolen Winter Wandering Wooden
    Yellow
""")
STORY_THINGS = _words("""
    Bell Bridge Candle Canal City Clock Corridor Door Engine Feast Forest Garden House Island Journey Key Ladder
    Letter Lighthouse Map Mill Mirror Mountain Orchard River Road Room Shore Station Tower
""")
DEVICES = _words("""
    balance camera clock crane cutter drill dryer grinder harvester kiln lamp lathe lift loom mixer mower organ
    plough press pump saw scale stove telescope typewriter winch
""")
LANDFORMS = _words("""
    Basin Canyon Cape Caves Cliffs Coast Delta Desert Forest Glacier Gulf Highlands Islands Lakes Marshes
    Mountains Peninsula Plateau Reef Steppe Strait Valley
""")
LINES = _words("""
    Bay Border Canal Castle Coast Dale Forest Harbour Heath Hill Island Lakeside Marsh Mill Moor Mountain Park
    Quarry River Valley
""")
REVELS = _words("""
    Apple Bell Boat Bread Candle Cheese Chess Choir Drum Fiddle Flower Harvest Honey Kite Lantern Poetry Puppet
    Pumpkin Snow Wool
""")
