"""A source as a recipe names it -> articles of questions, or examples of texts.

`SOURCES.register("mine")` on a function makes it the loader of `mine` and `mine:...`. It gets the whole source and
returns articles as in a SQuAD file, or, if it has the attribute `kind = "texts"`, `Example`s.
"""

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertvision.data.squad import Articles, check_articles, questions, read_articles
from bertvision.errors import UserError, nearest
from bertvision.recipe import DataRecipe
from bertvision.registry import SOURCES

if TYPE_CHECKING:
    from bertvision.data.tables import Example

SAMPLE_SIZES = {"train": 3000, "tune": 400, "test": 800}
SAMPLE_SEED = 1
HUB_NAMES = {"squad": "rajpurkar/squad", "squad_v2": "rajpurkar/squad_v2"}
HUB_SPLITS = ("train", "validation")
GLUE = "glue:"  # opens the name of a GLUE source
TITLE_END = re.compile(r",(?!_)")  # a comma within a title is followed by an underscore: Fresno,_California


def load_articles(source: str) -> Articles:
    """The articles of a source, checked.

    `sample:train`, `sample:tune:500`, `sample:test:500:7`   the sample set: split, number of questions, seed
    `path/to/file.json`                                      a SQuAD 1.1 or 2.0 file
    `squad_v2`, `squad:validation`                           from the hub (`datasets` library); train unless named
    `squad2-dev`                                             the official development set; fetched once, checked
    `squad2-dev#articles=Normans,Oxygen`                     the articles of these titles or numbers, such as 1-5,8
    `path/to/file.json#1/2`                                  every second article from the first on; #2/2 the others
    `path/to/file.json*2`                                    twice: it counts double
    `a.json+b.json`                                          several, one after the other
    """
    articles: Articles = []
    owner: dict[str, str] = {}
    for part in parts(source):
        loaded = _load_one(part)
        ids = [qa["id"] for qa in questions(loaded)]
        if twice := next((id_ for id_ in ids if id_ in owner), None):
            raise UserError(
                f"{source}: question id {twice!r} is in {owner[twice]} and again in {part}; join different data"
            )
        owner.update(dict.fromkeys(ids, part))
        articles += loaded
    return articles


def parts(source: str) -> list[str]:
    """The sources joined by `+`. A file whose name contains a plus sign is still one file."""
    return [source] if _exists(source) else source.split("+")


def _exists(path: str) -> bool:
    try:
        return bool(path) and Path(path).exists()
    except (OSError, ValueError):  # longer than a file name can be, or with a NUL
        return False


def is_synthetic(source: str) -> bool:
    """Whether any part of the source is the sample set: its scores show that the program works, no more."""
    return any(part.partition(":")[0] == "sample" for part in parts(source))


def is_text(source: str) -> bool:
    """Whether a source holds texts with labels or scores rather than questions on paragraphs; all its parts must."""
    from bertvision.data.tables import is_table  # questions need no tables

    are_texts = []
    for part in parts(source):
        whole = re.sub(r"[*#][\d/]+$", "", part)
        if whole != part and is_table(whole) and not _exists(part):
            raise UserError(f"{part}: only files of questions on paragraphs can be split or repeated; name {whole}")
        are_texts.append(_registered(part, "texts") is not None or part.startswith(GLUE) or is_table(part))
    if any(are_texts) != all(are_texts):
        raise UserError(f"{source}: joins questions on paragraphs with tables of texts; name one kind")
    return all(are_texts)


class Examples(NamedTuple):
    """A set of texts. notes: sentences worth showing to the user."""

    source: str
    examples: "list[Example]"
    notes: tuple[str, ...] = ()


def read_examples(source: str, data: DataRecipe, labelled: bool = True) -> Examples:
    """The examples of a source: `glue:TASK/SPLIT`, a .csv, .tsv or .jsonl file, or several joined with `+`.

    In your own table, data.text names one or two columns and data.label the one to learn. labelled: whether targets
    are wanted; otherwise there need be none.
    """
    from bertvision.data.tables import Example

    notes: list[str] = []
    examples = [example for part in parts(source) for example in _examples(part, data, labelled, notes)]
    numbered = [
        Example(str(number), example.texts, example.target if labelled else None, example.origin, example.line)
        for number, example in enumerate(examples)
    ]
    return Examples(source, numbered, tuple(notes))


def _examples(part: str, data: DataRecipe, labelled: bool, notes: list[str]) -> "list[Example]":
    """The examples of one source, not yet numbered."""
    from bertvision.data import glue
    from bertvision.data.tables import SUFFIXES, Example, is_table, read_columns

    if load := _registered(part, "texts"):
        return load(part)
    left_out: list[int] = []
    broken = left_out if data.broken == "leave out" else None
    if part.startswith(GLUE):
        texts = len(glue.GLUE[glue.parse(part)[0]].text)
        origin, rows = glue.read(part, data.glue, broken)
    else:
        if not is_table(part):
            raise UserError(
                f"{part}: holds no texts with labels; name glue:TASK/SPLIT, or a {', '.join(SUFFIXES)} file"
            )
        if not 1 <= len(data.text) <= 2:
            raise UserError('data.text: name the one or two columns that hold the text, such as ["question", "answer"]')
        if labelled and not data.label:
            raise UserError("data.label: name the column that holds the label or the score")
        texts, origin = len(data.text), part
        rows = read_columns(Path(part), (*data.text, *([data.label] if labelled else [])), None, broken)
    if not rows:
        raise UserError(f"{origin}: has no examples, only a line of column names")
    if left_out:
        notes.append(f"{origin}: {len(left_out):,} of {len(rows) + len(left_out):,} lines are broken and left out")
    return [
        Example("", cells[:texts], cells[texts] if len(cells) > texts else None, origin, line) for line, cells in rows
    ]


def _registered(part: str, kind: str) -> Callable[[str], list[Any]] | None:
    """The function that loads a registered source, if there is one of this kind."""
    load = SOURCES.get(part.partition(":")[0])
    return load if getattr(load, "kind", "questions") == kind else None


def _load_one(source: str) -> Articles:
    """The articles of one source, with its `#` and `*`."""
    if not _exists(source):
        for mark, change in (("*", _repeated), ("#", _part_of)):
            whole, separator, rest = source.rpartition(mark)
            if separator:
                return change(_load_one(whole), rest, source)
    if load := _registered(source, "questions"):
        return load(source)
    if source.endswith(".json") or "/" in source or "\\" in source or _exists(source):
        return read_articles(Path(source))
    names = [*(f"sample:{split}" for split in SAMPLE_SIZES), *SOURCES]
    raise UserError(f"no data are called {source!r}; {nearest(source, names)} (a file ends in .json)")


def _part_of(articles: Articles, part: str, source: str) -> Articles:
    """Some of the articles. part: "k/n", every n-th from the k-th on; or "articles=" and titles or numbers."""
    key, chosen, names = part.partition("=")
    if key == "articles" and chosen:
        indices = [index for name in TITLE_END.split(names) for index in _indices_of(articles, name, source)]
        if len(set(indices)) < len(indices):
            raise UserError(f"{source}: names an article twice")
        return [articles[index] for index in indices]
    number, _, count = part.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise UserError(f"{source}: after # goes which part of how many, such as #1/2, or #articles=Oxygen,3,7-9")
    return articles[int(number) - 1 :: int(count)]


def _indices_of(articles: Articles, name: str, source: str) -> list[int]:
    """The places of the articles that a title, a number (from 1) or a range of numbers names."""
    titles = [article["title"] for article in articles]
    if name in titles:
        return [index for index, title in enumerate(titles) if title == name]
    first, _, last = name.partition("-")
    numbers = [int(number) for number in (first, last or first) if number.isdecimal()]
    if len(numbers) < 2:
        raise UserError(f"{source}: has no article {name!r}; {nearest(name, titles)}")
    if not 1 <= numbers[0] <= numbers[1] <= len(titles):
        raise UserError(f"{source}: articles {name}: there are {len(titles)}, numbered from 1")
    return list(range(numbers[0] - 1, numbers[1]))


def _repeated(articles: Articles, times: str, source: str) -> Articles:
    """The articles several times. Question ids of the second copy end in `*2`, and so on."""
    if not (times.isdecimal() and int(times)):
        raise UserError(f"{source}: after * goes how many times, such as *2")
    result = list(articles)
    for time in range(2, int(times) + 1):
        copies = copy.deepcopy(articles)
        for qa in questions(copies):
            qa["id"] += f"*{time}"
        result += copies
    return result


@SOURCES.register("sample")
def _load_sample(source: str) -> Articles:
    """sample:SPLIT[:QUESTIONS[:SEED]]"""
    split, *numbers = source.partition(":")[2].split(":")
    if split not in SAMPLE_SIZES:
        raise UserError(f"{source}: the sample set has no split {split!r}; {nearest(split, SAMPLE_SIZES)}")
    if len(numbers) > 2 or not all(number.isdecimal() and len(number) < 10 for number in numbers):
        raise UserError(f"{source}: must be sample:{split}, sample:{split}:QUESTIONS or sample:{split}:QUESTIONS:SEED")
    count, seed = [*map(int, numbers), *(SAMPLE_SIZES[split], SAMPLE_SEED)[len(numbers) :]]
    from bertvision.data.sample import make

    return make(split, count, seed)


@SOURCES.register("squad")
@SOURCES.register("squad_v2")
def _load_squad(source: str) -> Articles:
    name, _, split = source.partition(":")
    split = split or "train"
    if split not in HUB_SPLITS:
        raise UserError(f"{source}: {name} has no split {split!r}; {nearest(split, HUB_SPLITS)}")
    from bertvision.data.download import load_hub

    articles = group_rows(load_hub(source, (HUB_NAMES[name],), split, "give the path of a SQuAD .json file"))
    check_articles(articles, source)
    return articles


@SOURCES.register("squad2-dev")
def _load_dev_set(source: str) -> Articles:
    if source != "squad2-dev":
        raise UserError(f"{source}: squad2-dev has no splits; choose articles by squad2-dev#articles=…")
    from bertvision.data.download import DEV_SET, fetch_dev_set

    local = Path("data") / DEV_SET  # where `bertvision data fetch` puts it
    return read_articles(fetch_dev_set(local.parent if local.is_file() else None))


def group_rows(rows: Iterable[Mapping[str, Any]]) -> Articles:
    """Articles from flat rows {id, title, context, question, answers: {text: [...], answer_start: [...]}}."""
    articles: dict[str, dict[str, list[dict[str, Any]]]] = {}  # title -> context -> questions
    for row in rows:
        texts, starts = row["answers"]["text"], row["answers"]["answer_start"]
        answers = [{"text": text, "answer_start": int(start)} for text, start in zip(texts, starts)]
        qa = {"id": row["id"], "question": row["question"], "answers": answers, "is_impossible": not answers}
        articles.setdefault(row["title"], {}).setdefault(row["context"], []).append(qa)
    return [
        {"title": title, "paragraphs": [{"context": context, "qas": qas} for context, qas in paragraphs.items()]}
        for title, paragraphs in articles.items()
    ]
