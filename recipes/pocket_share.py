"""Chooses the share of answerable questions that pocket assumes: python recipes/pocket_share.py DATA REPORT.json

The rule, stated before any number of the reporting part was seen: the least share, in steps of 0.01 from that of
tune.json on, at which the reader says at least 91 % of its spans F1 on the choosing part of Reddit, and its F1 on
tune.json is at most 0.5 below that at tune.json's own share. If there is none, tune.json's share stays.

The choosing part are the first 400 paragraphs of squadshifts/reddit.json, whose first 802 questions had been looked at
for earlier versions; the reporting part, written to REPORT.json, the 400 after them, which had not. pocket learnt from
none. All of Reddit's questions have an answer: tune.json is there so that silence is not given up for them alone.
`bertvision reader ... --answerable SHARE` builds the reader. It ships if it holds on squad2/report.json: F1 at least
75, HasAns F1 70, NoAns F1 77.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bertvision import Reader
from bertvision.data.sources import load_articles
from bertvision.data.squad import records
from bertvision.evaluate.squad import question_scores
from bertvision.serve.answers import Options, collector_of, cut, rank

PART = 400  # paragraphs of each part
KEPT, LOST = 0.91, 0.5
STEPS = [number / 100 for number in range(55, 96)]


def reddit(data: Path, first: int) -> dict:
    """A part of Reddit as a SQuAD file."""
    found = json.loads((data / "squadshifts" / "reddit.json").read_text(encoding="utf-8"))
    (article,) = found["data"]
    return found | {"data": [article | {"paragraphs": article["paragraphs"][first : first + PART]}]}


def read(reader: Reader, source: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each question of a file: its no-answer score, the F1 of its best span, and that of "no answer"."""
    articles = load_articles(str(source))
    asked, config = records(articles), reader.config.tasks["spans"]
    pairs = [(one.question, one.context) for one in asked]
    windows = cut(reader.engine.tokenizer, pairs, config)
    collector = collector_of(config, pairs, windows)
    reader.read_windows(windows, {"spans": collector})
    found, options = collector.finish(), Options(limit=1.0)
    spans = {
        one.id: rank(found, row, one.context, config, options).answers[0]["answer"] for row, one in enumerate(asked)
    }
    said, silent = question_scores(articles, spans), question_scores(articles, dict.fromkeys(spans, ""))
    f1 = [np.array([scores[one.id][1] for one in asked]) for scores in (said, silent)]
    return np.asarray(found.no_answer), *f1


def choose(data: Path) -> float:
    """The share by the rule; prints what it saw."""
    reader = Reader.from_pretrained("pocket", engine="torch")
    config = reader.config.tasks["spans"]
    with TemporaryDirectory() as scratch:
        part = Path(scratch) / "reddit.json"
        part.write_text(json.dumps(reddit(data, 0)), encoding="utf-8")
        other, tune = read(reader, part), read(reader, data / "squad2" / "tune.json")

    def scores(share: float) -> tuple[float, float]:
        limit = config.assuming(share).threshold
        kept, f1 = (np.where(doubt > limit, silent, said) for doubt, said, silent in (other, tune))
        return float(kept.mean() / other[1].mean()), 100 * float(f1.mean())

    own = float((tune[2] == 0).mean())
    best = scores(own)
    print(f"spans F1 on {len(other[1])} questions of Reddit: {100 * other[1].mean():.2f}")
    print(f"share {own:.4f}, tune's: {100 * best[0]:.2f} %, tune F1 {best[1]:.2f}")
    chosen = own
    for share in STEPS:
        kept, f1 = scores(share)
        print(f"share {share:.2f}: {100 * kept:.2f} %, tune F1 {f1:.2f}")
        if chosen == own and kept >= KEPT and f1 >= best[1] - LOST:
            chosen = share
    return chosen


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    Path(sys.argv[2]).write_text(json.dumps(reddit(folder, PART)), encoding="utf-8")
    print(f"chosen: {choose(folder):.4g}")
