"""Where span data come from: a source as it stands in a recipe -> articles. Official files are fetched and verified."""

import hashlib
import http.client
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from bertvision.data import glue, sample
from bertvision.data.squad import check_articles, read_articles, statistics
from bertvision.data.tables import SUFFIXES, Example, example_statistics, is_table, read_columns
from bertvision.errors import UserError, nearest
from bertvision.files import replacing
from bertvision.recipe import DataRecipe

SAMPLE_SIZES = {"train": 3000, "tune": 400, "test": 800}
SAMPLE_SEED = 1
HUB_NAMES = {"squad": "rajpurkar/squad", "squad_v2": "rajpurkar/squad_v2"}
HUB_SPLITS = ("train", "validation")

OFFICIAL_URL = "https://rajpurkar.github.io/SQuAD-explorer/dataset/"
OFFICIAL_FILES = {
    "train-v2.0.json": (42_123_633, "68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002"),
    "dev-v2.0.json": (4_370_528, "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8"),
    "dev-v1.1.json": (4_854_279, "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9"),
}
"""Size in bytes and SHA-256 of the files on the official site."""

_CHUNK = 1 << 20


def load_articles(source: str) -> list[dict[str, Any]]:
    """The articles of a source, checked.

    `sample:train`, `sample:tune:500`, `sample:test:500:7`   the sample set: split, number of questions, seed
    `path/to/file.json`                                      a SQuAD 1.1 or 2.0 file
    `squad_v2`, `squad:validation`                           from the hub (`datasets` library); train unless named
    `path/to/file.json#1/2`                                  every second article from the first on; #2/2 the others
    `path/to/file.json*2`                                    twice: it counts double
    `a.json+b.json`                                          several, one after the other
    """
    articles: list[dict[str, Any]] = []
    owner: dict[str, str] = {}
    for part in parts(source):
        loaded = _load_one(part)
        for id_ in _question_ids(loaded):
            if id_ in owner:
                raise UserError(
                    f"{source}: question id {id_!r} is in {owner[id_]} and again in {part}; join different data"
                )
        owner.update(dict.fromkeys(_question_ids(loaded), part))
        articles += loaded
    return articles


def is_synthetic(source: str) -> bool:
    """True if any part of the source is the sample set: its scores say that the program works, no more."""
    return any(part.partition(":")[0] == "sample" for part in parts(source))


def group_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
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


def fetch_official(
    name: str,
    directory: Path,
    *,
    base_url: str = OFFICIAL_URL,
    files: Mapping[str, tuple[int, str]] = OFFICIAL_FILES,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Downloads an official SQuAD file into `directory` and returns its path.

    The file appears only when its size and SHA-256 are right; one that is already there and right is kept.
    progress: called with (bytes received, bytes in all).
    """
    if name not in files:
        raise UserError(f"no official file is called {name!r}; {nearest(name, files)}")
    size, digest = files[name]
    path = Path(directory) / name
    url = base_url.rstrip("/") + "/" + name
    if _is_right(path, size, digest):
        return path
    try:
        with replacing(path) as scratch, scratch.open("wb") as file:
            received, found = _download(url, file, size, progress)
            if (received, found) != (size, digest):
                raise UserError(
                    f"{url}: not the official file ({received} bytes, sha256 {found[:12]}...; expected {size} bytes, "
                    f"{digest[:12]}...); nothing was kept, try again or give the path of your own copy"
                )
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); choose another directory") from error
    return path


def parts(source: str) -> list[str]:
    """The sources joined by `+`. A file whose name holds a plus sign is still one file."""
    try:
        one_file = Path(source).is_file()
    except OSError:  # longer than a file name can be
        one_file = False
    return [source] if one_file else source.split("+")


def _load_one(source: str) -> list[dict[str, Any]]:
    if "*" in source and not Path(source).exists():
        whole, _, times = source.rpartition("*")
        return _repeated(_load_one(whole), times, source)
    if "#" in source and not Path(source).exists():
        whole, _, part = source.rpartition("#")
        return _part_of(_load_one(whole), part, source)
    name, _, rest = source.partition(":")
    if name == "sample":
        return _load_sample(source, rest.split(":"))
    if name in HUB_NAMES:
        return _load_hub(source, name, rest or "train")
    if source.endswith(".json") or "/" in source or "\\" in source or (source and Path(source).exists()):
        return read_articles(Path(source))
    known = [*(f"sample:{split}" for split in SAMPLE_SIZES), *HUB_NAMES]
    raise UserError(f"no data are called {source!r}; {nearest(source, known)} (a file ends in .json)")


def _part_of(articles: list[dict[str, Any]], part: str, source: str) -> list[dict[str, Any]]:
    """Every n-th article, from the k-th on: part = "k/n"."""
    number, _, parts = part.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise UserError(f"{source}: after # stands which part of how many, such as #1/2")
    return articles[int(number) - 1 :: int(parts)]


def _repeated(articles: list[dict[str, Any]], times: str, source: str) -> list[dict[str, Any]]:
    """The articles several times over. Questions of the second time have ids that end in `*2`, and so on."""
    if not (times.isdecimal() and int(times)):
        raise UserError(f"{source}: after * stands how many times, such as *2")
    again = [_renamed(article, f"*{time}") for time in range(2, int(times) + 1) for article in articles]
    return articles + again


def _renamed(article: dict[str, Any], ending: str) -> dict[str, Any]:
    """A copy whose questions have other ids."""
    paragraphs = [
        {**paragraph, "qas": [{**qa, "id": f"{qa['id']}{ending}"} for qa in paragraph["qas"]]}
        for paragraph in article["paragraphs"]
    ]
    return {**article, "paragraphs": paragraphs}


def _load_sample(source: str, options: list[str]) -> list[dict[str, Any]]:
    """options: split[, questions[, seed]]"""
    split, *numbers = options
    if split not in SAMPLE_SIZES:
        raise UserError(f"{source}: the sample set has no split {split!r}; {nearest(split, SAMPLE_SIZES)}")
    if len(numbers) > 2 or not all(number.isdecimal() for number in numbers):
        raise UserError(f"{source}: must be sample:{split}, sample:{split}:QUESTIONS or sample:{split}:QUESTIONS:SEED")
    questions, seed = [*map(int, numbers), *(SAMPLE_SIZES[split], SAMPLE_SEED)[len(numbers) :]]
    return sample.make(split, questions, seed)


def _load_hub(source: str, name: str, split: str) -> list[dict[str, Any]]:
    if split not in HUB_SPLITS:
        raise UserError(f"{source}: {name} has no split {split!r}; {nearest(split, HUB_SPLITS)}")
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"{source}: needs `datasets`; pip install 'bertvision[hub]', or give the path of a SQuAD .json file"
        ) from error
    try:
        rows = datasets.load_dataset(HUB_NAMES[name], split=split)
    except Exception as error:  # the hub client raises errors of many families, some outside OSError
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{source}: cannot be loaded from the hub ({reason}); go online, or give the path of a SQuAD .json file"
        ) from error
    articles = group_rows(rows)
    check_articles(articles, source)
    return articles


def _question_ids(articles: Iterable[Mapping[str, Any]]) -> list[str]:
    return [qa["id"] for article in articles for paragraph in article["paragraphs"] for qa in paragraph["qas"]]


def _is_right(path: Path, size: int, digest: str) -> bool:
    if not path.is_file() or path.stat().st_size != size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == digest


def _download(url: str, file: IO[bytes], size: int, progress: Callable[[int, int], None] | None) -> tuple[int, str]:
    """Streams a URL into a file: (bytes received, SHA-256). Stops soon after `size` bytes, come what may."""
    received, sha = 0, hashlib.sha256()
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            while received <= size and (chunk := response.read(_CHUNK)):
                file.write(chunk)
                sha.update(chunk)
                received += len(chunk)
                if progress is not None:
                    progress(received, size)
    except urllib.error.HTTPError as error:
        error.close()
        raise UserError(
            f"{url}: answered {error.code} {error.reason}; try later, or give the path of your own copy"
        ) from error
    except (urllib.error.URLError, ssl.SSLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(f"{url}: cannot be reached ({reason}); go online, or give the path of your own copy") from error
    return received, sha.hexdigest()


def is_text(source: str) -> bool:
    """Whether a source holds texts with labels or scores rather than questions on paragraphs; all its parts must."""
    found = [part.startswith(glue.PREFIX) or is_table(part) for part in parts(source)]
    for part in parts(source):
        whole = re.sub(r"[*#][\d/]+$", "", part)
        if whole != part and is_table(whole) and not Path(part).exists():
            raise UserError(f"{part}: only files of questions on paragraphs can be parted or repeated; name {whole}")
    if any(found) != all(found):
        raise UserError(f"{source}: joins questions on paragraphs with tables of texts; name one kind")
    return all(found)


def load_examples(
    source: str, data: DataRecipe, labelled: bool = True, notes: list[str] | None = None
) -> list[Example]:
    """The examples of a source: `glue:TASK/SPLIT`, a .csv, .tsv or .jsonl file, or several joined with `+`.

    In a table of one's own, data.text names one or two columns and data.label the one to learn. labelled: whether
    targets are wanted; without, there need be none. notes: takes what is worth knowing, a sentence each.
    """
    examples: list[Example] = []
    for part in parts(source):
        left_out: list[int] = []
        broken = left_out if data.broken == "leave out" else None
        if part.startswith(glue.PREFIX):
            name, split = glue.parse(part)
            columns, has = len(glue.GLUE[name].text), glue.is_labelled(split)
            origin, rows = glue.read(part, data.glue, broken)
        else:
            _check_table(part, data, labelled)
            columns, has, origin = len(data.text), labelled, part
            rows = read_columns(Path(part), (*data.text, *([data.label] if has else [])), None, broken)
        if not rows:
            raise UserError(f"{origin}: has no examples, only a line of column names")
        if left_out and notes is not None:
            count = len(rows) + len(left_out)
            notes.append(f"{origin}: {len(left_out):,} of {count:,} lines are broken and left out")
        examples += [
            Example(str(number), cells[:columns], cells[columns] if has and labelled else None, origin, line)
            for number, (line, cells) in enumerate(rows, start=len(examples))
        ]
    return examples


def _check_table(path: str, data: DataRecipe, labelled: bool) -> None:
    if not is_table(path):
        raise UserError(f"{path}: holds no texts with labels; name glue:TASK/SPLIT, or a {', '.join(SUFFIXES)} file")
    if not 1 <= len(data.text) <= 2:
        raise UserError('data.text: name the one or two columns that hold the text, such as ["question", "answer"]')
    if labelled and not data.label:
        raise UserError("data.label: name the column that holds the label or the score")


def describe(source: str, data: DataRecipe) -> dict[str, Any]:
    """Statistics of a set of questions or texts, ready for JSON; data: where GLUE lies, which columns to read."""
    if is_text(source):
        return example_statistics(load_examples(source, data))
    return statistics(load_articles(source)) | {"synthetic": is_synthetic(source)}
