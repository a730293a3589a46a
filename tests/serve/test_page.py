"""The web pages in a real browser: type, click, see the answer marked. Skipped where there is no chromium."""

import re
import shutil

import httpx
import pytest

from bertvision.serve.server import Limits
from serve.servers import LastWordReader, serving

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(not BROWSER, reason="the page is not tested: no chromium (apt-get install chromium)")
CONTEXT = "In 1823 🎉 Augustin Fresnel chose it. <b>Fresnel</b> & co."


@pytest.fixture(scope="module")
def url():
    with serving(LastWordReader(), Limits(context=1000), page=True) as found:
        yield found


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def tab(browser, url):
    """The page in a phone's width; afterwards, that it asked only this server and nothing went wrong."""
    opened = browser.new_page(viewport={"width": 390, "height": 844})
    asked, wrong = [], []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
    opened.goto(url)
    yield opened
    opened.close()
    assert asked and all(one.startswith(url) for one in asked)
    assert not [one for one in wrong if "422" not in one]  # a refusal is shown, and noted by the browser


def ask(tab, question: str, context: str) -> None:
    tab.get_by_label("Question").fill(question)
    tab.get_by_label("Text", exact=True).fill(context)
    tab.get_by_role("button", name="Ask").click()


@needs_browser
def test_the_answer_is_marked_in_the_text(tab):
    ask(tab, "Who is Fresnel?", CONTEXT)
    tab.locator("mark").wait_for()
    assert tab.locator("mark").inner_text() == "Fresnel"
    assert tab.locator(".context").inner_text() == CONTEXT
    shown = tab.locator("#result").inner_text()
    assert "no answer: 25 %" in shown and "75 %" in shown and "38 %" in shown
    assert tab.locator(".layers i").count() == 3
    assert tab.get_by_role("img").get_attribute("aria-label") == "layer 0 20 %, layer 1 30 %, layer 2 50 %"
    assert tab.locator(".bar i").first.evaluate("bar => bar.style.width") == "75%"
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")  # it fits on a phone


@needs_browser
def test_a_file_far_down_in_which_the_answer_is(tab, tmp_path):
    (tmp_path / "notes.txt").write_text("a line\n" * 100 + "Fresnel\n" + "a line\n" * 20)
    tab.get_by_label("Open a text file").set_input_files(tmp_path / "notes.txt")
    tab.wait_for_function("() => document.getElementById('context').value.includes('Fresnel')")
    tab.get_by_label("Question").fill("Who is Fresnel?")
    tab.get_by_label("Question").press("Enter")
    tab.locator("mark").wait_for()
    tab.wait_for_function(
        """() => { const box = document.querySelector(".context").getBoundingClientRect(),
        mark = document.querySelector("mark").getBoundingClientRect();
        return box.top <= mark.top && mark.bottom <= box.bottom; }""",
        timeout=5_000,
    )


@needs_browser
def test_an_example_is_one_click(tab):
    tab.get_by_text("Who began the lighthouse?").click()
    tab.locator("mark").wait_for()
    assert tab.locator("mark").inner_text() == "lighthouse"
    assert tab.get_by_label("Question").input_value() == "Who began the lighthouse?"


@needs_browser
def test_no_answer_and_refusals_are_said(tab):
    ask(tab, "Who is Zoe?", CONTEXT)
    tab.get_by_text("No answer in this text").wait_for()
    ask(tab, "Who?", "a" * 1001)
    tab.get_by_role("alert").filter(has_text="1000").wait_for()
    ask(tab, "", CONTEXT)
    tab.get_by_role("alert").filter(has_text="question").wait_for()


@needs_browser
def test_the_documentation_can_be_tried(browser, url):
    opened = browser.new_page()
    opened.goto(f"{url}/docs")
    opened.get_by_role("button", name="Send").first.click()
    opened.locator("output pre").first.wait_for()
    assert re.match(r"200\s+{\s+\"answers\"", opened.locator("output pre").first.inner_text())
    shown = opened.locator("main").inner_text()
    assert "POST /answer" in shown and "at most 1000 characters" in shown and "Errors: 400" in shown
    opened.close()


@needs_browser
def test_with_a_token_the_browser_asks_for_it(browser):
    with serving(LastWordReader(), token="s3cret", page=True) as url:
        assert httpx.get(f"{url}/static/page.js").status_code == 401
        opened = browser.new_page(http_credentials={"username": "me", "password": "s3cret"})
        opened.goto(url)
        ask(opened, "Who is Fresnel?", CONTEXT)
        opened.locator("mark").wait_for()
        opened.close()


@needs_browser
def test_a_reader_of_other_tasks_has_no_form(browser):
    with serving(LastWordReader(["labels"]), page=True) as url:
        opened = browser.new_page()
        opened.goto(url)
        opened.get_by_text("This reader has other tasks (labels)").wait_for()
        assert not opened.get_by_label("Question").is_visible()
        opened.close()


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_nothing_is_fetched_from_elsewhere_or_evaluated(url, path):
    reply = httpx.get(f"{url}{path}")
    loaded = re.findall(r"""<(?:script|link|img)[^>]*?(?:src|href)=["']([^"']+)""", reply.text)
    assert reply.status_code == 200 and len(loaded) == 3
    assert all(httpx.get(f"{url}/{address}").status_code == 200 for address in loaded)
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert "<style" not in reply.text and "style=" not in reply.text and not re.search(r"<script[^>]*>[^<]", reply.text)
