"""A reader answers from any text, in any shape of call, from any thread, and cuts its answers out exactly."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.data.batches import by_length, collate
from bertvision.data.sources import load_articles
from bertvision.data.squad import normalize, records
from bertvision.evaluate.calibration import Calibration
from bertvision.serve.answers import merged, probabilities, whole
from bertvision.serve.reader import Reader
from checks import error_of
from devices import RUNTIME
from encoders import WORDS
from readers import LABELS, tiny_reader
from runs import load, questions, recipe_of

TEXT = "the first king of the old city was born in the north by the great river, and his name was called world"
KEYS = {"answer", "score", "start", "end", "no_answer_score"}
SPELT = "e\u0301 日本語 🎉👩‍👩‍👧 \t \r\n שלום ‏ مرحبا Å \u00a0 \u3000 \u200b \x00 ß ﬁ İ the king of 1984, \ud800"


@cache
def reader(family: str = "bert") -> Reader:
    return tiny_reader(heads=[{"kind": "pool"}, {"kind": "last"}], family=family)


@pytest.mark.parametrize("family", ["bert", "roberta"])
@given(context=st.text(st.sampled_from(sorted(set(SPELT))), max_size=80), top_k=st.integers(1, 4))
@settings(max_examples=30)
def test_an_answer_is_cut_out_of_the_callers_own_text(family, context, top_k):
    found = reader(family).answers([("who was the king", context)], top_k=top_k)[0]
    assert 1 <= len(found) <= top_k
    places = [(one["start"], one["end"]) for one in found]
    assert len(set(places)) == len(places)
    for one in found:
        assert context[one["start"] : one["end"]] == one["answer"]
        assert one["answer"] == "" or one["answer"].strip()
    spans = [one["score"] for one in found if one["answer"]]
    assert spans[1:] == sorted(spans[1:], reverse=True)
    assert sum(spans) + found[0]["no_answer_score"] <= 1 + 1e-9


def test_accents_stay_with_their_letters():
    assert whole("un cafe\u0301 noir", 3, 7, words=False) == (3, 8)
    assert whole("e\u0301e", 1, 3, words=False) == (0, 3)
    assert whole("plain", 0, 5, words=False) == (0, 5)
    context = "the king cafe\u0301 "
    ends = {one["end"] for one in reader()("who", context, top_k=20)}
    assert context.index("\u0301") not in ends


def test_words_are_not_cut_into_the_pieces_of_the_tokenizer():
    assert whole("by Louis de Foix, who", 3, 15) == (3, 16)
    assert whole("by Louis de Foix, who", 15, 16) == (12, 16)
    assert whole("Zoe\u0308s 1,700 B2-C", 0, 1) == (0, 5)
    assert whole("1,700 B2-C", 2, 3) == (2, 5)  # as tokenizers do, it parts at signs
    assert whole("1,700 B2-C", 6, 7) == (6, 8)
    assert whole("由艾达创立", 1, 3) == (1, 3)  # no spaces, no words to be seen
    context = "zzqqxx the kingqx " * 3
    found = reader()("who", context, top_k=30)
    assert {word for one in found for word in one["answer"].split()} <= {"zzqqxx", "the", "kingqx"}
    pieces = reader()("who", context, top_k=30, align_to_words=False)
    assert {word for one in pieces for word in one["answer"].split()} > {"zzqqxx", "the", "kingqx"}


def test_shapes_of_calls_and_results():
    read = reader()
    one = read(question="who was king", context=TEXT)
    assert set(one) == KEYS
    assert read("who was king", TEXT) == one
    assert read({"question": "who was king", "context": TEXT}) == one
    three = read(question="who was king", context=TEXT, top_k=3)
    assert [set(found) for found in three] == [KEYS] * 3
    assert three[0] == one
    for several in (
        read(question=["who was king", "where"], context=TEXT),
        read([{"question": "who was king", "context": TEXT}, {"question": "where", "context": TEXT}]),
        read(question=["who was king", "where"], context=[TEXT, TEXT]),
    ):
        assert several[0]["answer"] == one["answer"]
        assert several[0]["score"] == pytest.approx(one["score"], abs=1e-5)
        assert len(several) == 2
    assert [len(ranked) for ranked in read(question=["who"], context=[TEXT], top_k=2)] == [2]
    assert read(question=[], context=TEXT) == []
    assert read.answers([]) == []


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"question": "who"}, "context: give"),
        ({"context": TEXT}, "question: give"),
        ({"question": " ", "context": TEXT}, "question: is empty"),
        ({"question": 3, "context": TEXT}, "question: must be a string or a list"),
        ({"question": ["who", None], "context": TEXT}, "question: must be a string, not NoneType"),
        ({"question": ["a", "b"], "context": ["x"]}, "lists of 1 and 2"),
        ({"question": [{"q": 1}]}, '{"question": ..., "context": ...}'),
        ({"question": "who", "context": TEXT, "top_k": 0}, "top_k: must be a whole number, at least 1, not 0"),
        ({"question": "who", "context": TEXT, "no_answer_threshold": 2}, "a probability from 0 to 1, not 2"),
        ({"question": {"question": "who", "context": TEXT}, "context": "b"}, "context: is in the dictionary already"),
        ({"question": "who", "context": TEXT, "max_answer_len": 0}, "max_answer_len: must be a whole number"),
        ({"question": "who", "context": TEXT, "doc_stride": 8}, "doc_stride: windows are cut as in training"),
        ({"question": "who", "context": TEXT, "colour": 8}, "colour: a reader has no such option; there is: align_to"),
        ({"question": "who", "context": TEXT, "topk": 8}, "topk: a reader has no such option; did you mean 'top_k'?"),
    ],
)
def test_what_cannot_be_asked(arguments, part):
    assert part in error_of(lambda: reader()(**arguments))


@pytest.mark.parametrize("context", ["", " \n\t", "\u200b"])
def test_a_text_without_words_answers_nothing(context):
    found = reader()(question="who", context=context, top_k=3, layers=True)
    assert [one["answer"] for one in found] == [""]
    assert (found[0]["start"], found[0]["end"]) == (0, 0)
    assert found[0]["no_answer_score"] == 1
    assert sum(found[0]["layers"]) == pytest.approx(1)


def test_a_long_document_is_read_to_its_end():
    context = f"{TEXT} . " * 60 + "zzz"
    read = reader()
    found = read.answers([("who was king", context)], top_k=20)[0]
    assert all(context[one["start"] : one["end"]] == one["answer"] for one in found)
    assert read.tokens([("who", context), ("who", "king")])[1] == 5
    seen = []
    read.answers([("who", context)], progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == read.tokens([("who", context)])[0]


def test_the_threshold_decides_when_to_say_nothing():
    read = reader()
    doubt = read("who", TEXT)["no_answer_score"]
    assert 0 < doubt < 1
    silent = read("who", TEXT, no_answer_threshold=doubt / 2, top_k=2)
    assert (silent[0]["answer"], silent[0]["score"]) == ("", doubt)
    assert silent[1]["answer"]
    assert read("who", TEXT, no_answer_threshold=doubt)["answer"]
    # the reader's own threshold: where null exceeds the best span by more than it
    assert tiny_reader(threshold=1e6)("who", TEXT)["answer"]
    assert tiny_reader(threshold=-1e6)("who", TEXT) == {
        "answer": "", "score": 1.0, "start": 0, "end": 0, "no_answer_score": 1.0
    }  # fmt: skip


def test_probabilities_are_a_softmax_in_which_the_threshold_is_a_draw_however_many_are_asked_for():
    spans, nothing = probabilities(torch.tensor([3.0, 1.0]).double().numpy(), no_answer=2.0, threshold=2.0, among=2)
    assert nothing == pytest.approx(spans[0])
    assert sum(spans) + nothing == pytest.approx(1)
    assert spans[0] / spans[1] == pytest.approx(2.718281828**2)
    read = reader()
    found = [read("who", TEXT, top_k=k)[:2] for k in (2, 20, 60, 10**12)]
    assert found[0] == found[1] == found[2] == found[3]
    assert len(read("who", TEXT, top_k=10**12)) > 5


WORDS_OF = st.lists(st.sampled_from(["king", "the", "King,", "city", "of", "—"]), min_size=1, max_size=8)


@given(words=WORDS_OF, data=st.data())
@settings(max_examples=200)
def test_candidates_that_are_one_answer_are_one(words, data):
    text = " ".join(words)
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    spans = [(int(ends[a]) - len(words[a]), int(ends[b])) for a in range(len(words)) for b in range(a, len(words))]
    places = data.draw(st.permutations(spans))
    weights = sorted(data.draw(st.lists(st.floats(0, 1), min_size=len(places), max_size=len(places))), reverse=True)
    groups = merged(text, places, weights, among=len(places), most=len(places))
    assert sum(total for _, total in groups) == pytest.approx(sum(weights))
    assert groups[0][0] == 0, "the answer is the most probable span"
    totals = [total for _, total in groups[1:]]
    assert totals == sorted(totals, reverse=True)
    assert all(total >= weights[top] for top, total in groups)
    tops = sorted(top for top, _ in groups)
    for n, top in enumerate(tops):  # no two are one answer
        for other in tops[:n]:
            apart = places[top][1] <= places[other][0] or places[other][1] <= places[top][0]
            spans = [text[slice(*places[each])].replace("—", " ") for each in (top, other)]
            one, two = (set(normalize(span).split()) for span in spans)
            assert apart or not (one <= two or two <= one or 2 * len(one & two) >= len(one | two))
    few = merged(text, places, weights, among=len(places), most=2)
    assert few == groups[:2]
    assert merged(text, places, weights, among=1, most=9**9)[0] == (0, weights[0])


def test_a_comma_more_or_a_word_less_is_no_other_answer():
    text = "It was built by Ada Moss, an engineer, in 1872."

    def at(part: str) -> tuple[int, int]:
        return text.index(part), text.index(part) + len(part)

    parts = ["Ada Moss", "1872", "Ada Moss,", "by Ada Moss", "in 1872", "Moss", "an engineer", "Moss, an engineer"]
    found = merged(text, [at(part) for part in parts], [0.3, 0.2, 0.1, 0.1, 0.15, 0.05, 0.06, 0.04], 8, 9)
    assert [(parts[top], round(total, 6)) for top, total in found] == [
        ("Ada Moss", 0.55),
        ("1872", 0.35),
        ("an engineer", 0.1),
    ]


def test_a_dash_a_point_or_a_shift_by_a_word_is_no_other_answer():
    text = "the Mexico–United States border is around 1.7 billion years old"
    parts = ["Mexico–United States border", "United States border", "1.7 billion years", "7 billion years old"]
    places = [(text.index(part), text.index(part) + len(part)) for part in (*parts, "around 1.7 billion")]
    assert [top for top, _ in merged(text, places, [0.4, 0.3, 0.2, 0.1, 0.05], 5, 9)] == [0, 2]


def test_the_share_of_answerable_questions_moves_the_threshold():
    read = tiny_reader(threshold=0.5, calibration=Calibration(slope=2.0, intercept=-1.0, answerable=0.5))
    plain = read("who", TEXT)
    shares = [0.01, 0.2, 0.5, 0.9, 0.999]
    found = [read("who", TEXT, answerable=share) for share in shares]
    doubts = [one["no_answer_score"] for one in found]
    assert doubts == sorted(doubts, reverse=True)
    assert found[2] == plain  # what was tuned for
    for share, doubt in zip(shares, doubts):
        odds = doubts[2] / (1 - doubts[2]) * (1 - share) / share
        assert doubt == pytest.approx(odds / (1 + odds))
    assert (found[0]["answer"], bool(found[-1]["answer"])) == ("", True)
    moved = read.config.tasks["spans"].assuming(0.9)
    assert moved.threshold == pytest.approx(0.5 + np.log(9) / 2)
    assert moved.assuming(0.5).threshold == pytest.approx(0.5)
    assert read.assuming(0.9)("who", TEXT) == found[3]
    every = read("who", TEXT, top_k=99, answerable=0.9)
    assert sum(one["score"] for one in every if one["answer"]) + every[0]["no_answer_score"] >= 1 - 1e-9
    for wrong in (0, 1, -0.5, True, "most"):
        assert "answerable: must be a share between 0 and 1" in error_of(
            lambda wrong=wrong: read("who", TEXT, answerable=wrong)
        )


def test_the_keywords_of_the_pipeline_of_old():
    read = tiny_reader(threshold=-1e6)
    assert read("who", TEXT)["answer"] == read("who", TEXT, handle_impossible_answer=True)["answer"] == ""
    assert read("who", TEXT, handle_impossible_answer=False)["answer"]
    for one in read("who", TEXT, top_k=50, max_answer_len=1)[1:]:
        assert len(one["answer"].split()) == 1
    assert read("who", TEXT, top_k=np.int64(2), no_answer_threshold=np.float32(0.5))


@pytest.mark.device
@pytest.mark.parametrize("rule", ["joint", "independent"])
def test_answers_are_those_of_the_evaluation(rule):
    recipe = recipe_of(evaluate={"nbest": 20, "answer_tokens": 8, "decoding": rule})
    backbone, task, data = load(recipe)
    read = tiny_reader(rule=rule, max_length=recipe.data.max_length)
    collector = task.collector(data["test"], recipe.evaluate)
    windows = data["test"].windows
    head = read.engine.heads["spans"]["pool 0"]
    with torch.no_grad():
        for index in by_length(windows.lengths, 512):
            collector.add(index, head(backbone(RUNTIME.to(collate(windows, index, backbone.pad)))))
    expected = collector.finish().answers(0.0)
    asked = records(load_articles(questions(24, 2)))
    found = read([{"question": one.question, "context": one.context} for one in asked], align_to_words=False)
    assert {one.id: got["answer"] for one, got in zip(asked, found)} == expected


def test_neither_threads_nor_company_in_a_batch_change_an_answer():
    read = reader()
    calls = [(f"who was the {word}", f"{word} {TEXT} " * (1 + n % 3)) for n, word in enumerate(WORDS.split()[:24])]
    serial = [read(question=q, context=c, top_k=2, layers=True) for q, c in calls]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda pair: read(*pair, top_k=2, layers=True), calls)) == serial
    pairs = [("who", TEXT * n) for n in (1, 4, 2)] + [("what was the city called", TEXT)]
    for pair, found in zip(pairs, read.answers(pairs)):
        assert found[0]["score"] == pytest.approx(read.answers([pair])[0][0]["score"], abs=1e-5)


HEADS = [{"kind": "last"}, {"kind": "pool"}, {"kind": "attend", "form": "dot"}, {"kind": "compress", "size": 8}]


@pytest.mark.device
@pytest.mark.parametrize("head", HEADS)
def test_layers_are_shares(head):
    read = tiny_reader(heads=[head])
    context = f"{TEXT} . " * 6
    found = read("who was king", context, top_k=4, layers=True)
    for one in found:
        assert len(one["layers"]) == 4
        assert sum(one["layers"]) == pytest.approx(1)
        assert min(one["layers"]) >= 0
        if head["kind"] == "last":
            assert one["layers"] == pytest.approx([0, 0, 0, 1])
    learned = next(iter(read.engine.heads["spans"].values())).layer_weights()
    if learned is not None:
        assert found[0]["layers"] == pytest.approx(learned.cpu().tolist())


def test_layers_follow_the_gradient():
    """A head that reads layer 1 alone rests on layer 1, for an answer and for none."""
    read = tiny_reader(heads=[{"kind": "pool", "weights": "mean"}])
    (head,) = read.engine.heads["spans"].values()
    forward = type(head).forward
    head.forward = lambda states: forward(
        head, type(states)(states.layers * torch.eye(4)[1].view(1, 4, 1, 1), states.mask)
    )
    for limit in (0.0, 1.0):
        assert read("who", TEXT, layers=True, no_answer_threshold=limit)["layers"] == pytest.approx([0, 1, 0, 0])


@pytest.mark.parametrize("how", ["max", "mean", "product"])
def test_an_ensemble_of_twins_is_the_head_alone(how):
    twins = tiny_reader(heads=[{"kind": "pool"}, {"kind": "pool"}], how=how)
    one, two = twins.engine.heads["spans"].values()
    two.load_state_dict(one.state_dict())
    alone = tiny_reader(heads=[{"kind": "pool"}])
    alone.engine.heads["spans"]["pool 0"].load_state_dict(one.state_dict())
    # one window, so that members' normalised logits and the raw ones rank alike
    assert twins("who", TEXT)["answer"] == alone("who", TEXT)["answer"]
    assert twins("who", TEXT)["score"] == pytest.approx(alone("who", TEXT)["score"], abs=1e-4)


@pytest.mark.device
def test_labels_and_scores():
    labels, score = tiny_reader("labels"), tiny_reader("score")
    found = labels.classify(["the king", "the river " * 200])
    assert [set(one["scores"]) for one in found] == [set(LABELS)] * 2
    assert all(one["score"] == max(one["scores"].values()) for one in found)
    assert sum(found[0]["scores"].values()) == pytest.approx(1)
    assert labels.classify("the king")["label"] == found[0]["label"]
    assert labels.classify("the king", "the queen")["label"] in LABELS
    assert isinstance(score.similarity("a king", "the king"), float)
    assert score.similarity(["a", "b"], "the king")[0] == pytest.approx(score.similarity("a", "the king"), abs=1e-5)
    assert "none for answer" in error_of(lambda: labels("who", TEXT))
    assert "none for classify" in error_of(lambda: score.classify("a"))
    assert "text: must be a string" in error_of(lambda: labels.classify([3]))  # type: ignore[list-item]
    for wrong in (3, None, {"text": "a"}, b"a"):
        assert "texts: must be a string or a list of strings" in error_of(lambda wrong=wrong: labels.classify(wrong))


@pytest.mark.device
def test_entities_are_parts_of_the_text():
    reader = tiny_reader("tokens")
    text = "The  king's river (in the old north-city).\n" * 4  # longer than a window
    found = reader.entities([text, "", "…"])
    assert found[0] and found[1] == [] and all(entity["text"] == "…" for entity in found[2])
    for entity in found[0]:
        assert text[entity["start"] : entity["end"]] == entity["text"] == entity["text"].strip()
        assert entity["label"] in ("LOC", "PER") and 0 < entity["score"] <= 1
    assert [one["start"] for one in found[0]] == sorted(one["start"] for one in found[0])
    assert reader.entities(text) == found[0]
    assert "none for answer" in error_of(lambda: reader("who", TEXT))
    assert "call entities(texts)" in error_of(lambda: reader.everything([("who", TEXT)]))
    assert "single texts" in error_of(lambda: Reader.join({"spans": tiny_reader(), "names": reader}))


def test_one_pass_serves_all_tasks(monkeypatch):
    parts = {
        "spans": tiny_reader(),
        "mood": tiny_reader("labels", too_long="windows"),
        "likeness": tiny_reader("score"),
    }
    joined = Reader.join(parts)
    assert joined.tasks == ("spans", "mood", "likeness")
    passes, backbone = [], type(joined.engine.backbone)
    run = backbone.forward
    monkeypatch.setattr(backbone, "forward", lambda *args, **options: passes.append(1) or run(*args, **options))
    pairs = [("who was king", TEXT), ("where", "the city")]
    found = joined.everything(pairs)
    assert len(passes) == 1
    assert [one["spans"][0]["answer"] for one in found] == [r[0]["answer"] for r in parts["spans"].answers(pairs)]
    assert found[0]["mood"]["label"] == parts["mood"].classify(*pairs[0])["label"]
    assert found[1]["likeness"] == pytest.approx(parts["likeness"].similarity(*pairs[1]), abs=1e-5)
    assert joined.classify(*pairs[0], task="mood")["label"] == found[0]["mood"]["label"]
    assert "'zzz' is not a task for classify" in error_of(lambda: joined.classify("a", task="zzz"))
    other = tiny_reader("labels", family="electra")
    assert "another backbone" in error_of(lambda: Reader.join({"spans": reader(), "labels": other}))
    assert "one task each" in error_of(lambda: Reader.join({"x": joined}))
    assert "at least one" in error_of(lambda: Reader.join({}))
