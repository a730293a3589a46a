"""An answer as HTML: nothing of the text is lost or becomes markup."""

import re
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from bertvision.serve.marked import answer_html, percent, refused_html


class Reading(HTMLParser):
    """The text of the context, and that of the mark in it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.context, self.mark, self.open = "", "", []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.open.append((tag, dict(attributes).get("class")))

    def handle_endtag(self, tag):
        self.open.pop()

    def handle_data(self, data):
        if ("div", "bv-context") in self.open:
            self.context += data
        if ("mark", None) in self.open:
            self.mark += data


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"))


@given(before=text, answer=text, after=text)
def test_the_context_is_whole_and_the_answer_marked(before, answer, after):
    context, start = before + answer + after, len(before)
    found = {"answer": answer, "score": 0.5, "start": start, "end": start + len(answer), "no_answer_score": 0.25}
    page = Reading(answer_html(context, [found]))
    assert (page.context, page.mark) == (context, answer)


def test_no_answer_marks_nothing_and_says_so():
    page = answer_html("a text", [{"answer": "", "score": 0.9, "start": 0, "end": 0, "no_answer_score": 0.9}])
    assert "<mark>" not in page and "No answer in this text" in page and "90 %" in page


def test_layers_are_bars_with_words_for_those_who_cannot_see_them():
    one = {"answer": "a", "score": 0.5, "start": 0, "end": 1, "no_answer_score": 0.25, "layers": [0.25, 0.75]}
    page = answer_html("a text", [one])
    assert 'aria-label="layer 0 25 %, layer 1 75 %"' in page
    assert len(re.findall(r'title="layer', page)) == 2
    assert "layers" not in answer_html("a text", [{key: one[key] for key in one if key != "layers"}])


def test_a_refusal_is_text():
    assert "<script>" not in refused_html("<script>")


def test_percentages_never_round_to_certainty():
    assert [percent(share) for share in (0, 0.001, 0.126, 0.999, 1)] == ["0 %", "< 1 %", "13 %", "> 99 %", "100 %"]
