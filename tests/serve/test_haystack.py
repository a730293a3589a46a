"""The reader as a component of a real Haystack pipeline."""

import os
import warnings

import pytest

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the package itself, while it is imported
    haystack = pytest.importorskip("haystack")
    from bertvision.serve.haystack import BertvisionReader

from readers import tiny_reader

KING = "the first king of the old city was born in the north"
RIVER = "the great river"


def test_a_pipeline_answers_and_comes_back_from_its_file(tmp_path):
    reader = tiny_reader()
    path = str(reader.save_pretrained(tmp_path / "reader"))
    pipeline = haystack.Pipeline()
    pipeline.add_component("reader", BertvisionReader(path, top_k=4))
    again = haystack.Pipeline.loads(pipeline.dumps(), allowed_modules=["bertvision.*"])
    documents = [haystack.Document(content=text) for text in (KING, RIVER, "", None)]
    for one in (pipeline, again):
        answers = one.run({"reader": {"query": "who was the king", "documents": documents}})["reader"]["answers"]
        assert len(answers) == 4
        assert [found.score for found in answers] == sorted((found.score for found in answers), reverse=True)
        for found in answers:
            if found.data is None:
                assert found.document is None
            else:
                span = found.document_offset
                assert found.document.content[span.start : span.end] == found.data
    expected = reader.answers([("who was the king", KING), ("who was the king", RIVER)], top_k=5)
    nothing = expected[0][0]["no_answer_score"] * expected[1][0]["no_answer_score"]
    component = BertvisionReader(path, top_k=100)
    answers = component.run("who was the king", documents)["answers"]
    assert [found.score for found in answers if found.data is None] == [pytest.approx(nothing)]
    best = max(one["score"] for ranked in expected for one in ranked if one["answer"])
    assert max(found.score for found in answers if found.data) == pytest.approx(best)
    silent = BertvisionReader(path, no_answer=False).run("who was the king", documents, top_k=1)["answers"]
    assert len(silent) == 1 and silent[0].data
    assert BertvisionReader(path).run("who", [])["answers"][0].score == 1.0
