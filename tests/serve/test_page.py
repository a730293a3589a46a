"""The page in a real browser: type, click, see the answer where it stands. Skipped where there is no chromium."""

import importlib.util
import re
import shutil

import httpx
import pytest

from bertvision.serve import page as page_module
from bertvision.serve.limits import Limits
from serve.servers import LastWordReader, serving

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(not BROWSER, reason="the page is not tested: no chromium (apt-get install chromium)")
CONTEXT = "In 1823 Augustin Fresnel chose it. <b>Fresnel</b> & co."


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
    """The page in a phone's width; afterwards, that all it ever asked was this server and nothing went wrong."""
    opened = browser.new_page(viewport={"width": 390, "height": 844})
    asked, wrong = [], []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
    opened.on("response", lambda reply: wrong.append(reply.url) if reply.status >= 400 else None)
    opened.goto(url)
    yield opened
    opened.close()
    assert asked and all(one.startswith((url, "data:", "blob:")) for one in asked)
    assert not wrong


def ask(tab, question: str, context: str) -> None:
    tab.get_by_label("Question").fill(question)
    tab.get_by_label("Context").fill(context)
    tab.get_by_role("button", name="Ask").click()


@needs_browser
def test_the_answer_is_marked_where_it_stands(tab):
    ask(tab, "Who is Fresnel?", CONTEXT)
    tab.locator("mark").wait_for(timeout=60_000)
    assert tab.locator("mark").inner_text() == "Fresnel"
    assert tab.locator(".bv-context").inner_text() == CONTEXT
    shown = tab.locator(".bv").inner_text()
    assert "holds no answer is 25 %" in shown and "75 %" in shown and "38 %" in shown
    assert tab.locator(".bv-layers i").count() == 3
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")  # nothing sticks out on a phone


@needs_browser
def test_an_answer_far_down_is_in_sight(tab):
    ask(tab, "Who is Fresnel?", "a line\n" * 120 + "Fresnel\n" + "a line\n" * 20)
    tab.locator("mark").wait_for(timeout=60_000)
    tab.wait_for_function(
        """() => { const box = document.querySelector(".bv-context").getBoundingClientRect(),
        mark = document.querySelector("mark").getBoundingClientRect();
        return box.top <= mark.top && mark.bottom <= box.bottom; }""",
        timeout=5_000,
    )


@needs_browser
def test_an_example_is_one_click(tab):
    tab.get_by_text("Who began the lighthouse?").first.click()
    tab.locator("mark").wait_for(timeout=60_000)
    assert tab.locator("mark").inner_text() == "lighthouse"
    assert tab.get_by_label("Question").input_value() == "Who began the lighthouse?"


@needs_browser
def test_no_answer_and_refusals_are_said(tab):
    ask(tab, "Who is Zoe?", CONTEXT)
    tab.get_by_text("No answer in this text").wait_for(timeout=60_000)
    ask(tab, "Who?", "a" * 1001)
    tab.get_by_role("alert").filter(has_text="1000").wait_for(timeout=60_000)
    ask(tab, "", CONTEXT)
    tab.get_by_role("alert").filter(has_text="question").wait_for(timeout=60_000)


@needs_browser
def test_the_documentation_can_be_tried(browser, url):
    opened = browser.new_page()
    opened.goto(f"{url}/docs")
    opened.get_by_role("button", name="Send").first.click()
    opened.locator("output pre").first.wait_for()
    assert re.match(r"200\s+{\s+\"answers\"", opened.locator("output pre").first.inner_text())
    opened.close()


@needs_browser
def test_with_a_token_the_browser_asks_for_it(browser):
    with serving(LastWordReader(), token="s3cret", page=True) as url:
        assert httpx.get(f"{url}/config").status_code == 401
        opened = browser.new_page(http_credentials={"username": "me", "password": "s3cret"})
        opened.goto(url)
        ask(opened, "Who is Fresnel?", CONTEXT)
        opened.locator("mark").wait_for(timeout=60_000)
        opened.close()


def test_nothing_is_fetched_from_elsewhere(url):
    reply = httpx.get(url, follow_redirects=True)
    loaded = re.findall(r"""<(?:script|link|img|iframe)[^>]*?(?:src|href)=["']?([^"' >]+)""", reply.text)
    assert reply.status_code == 200 and loaded
    assert not [address for address in loaded if address.startswith(("http", "//"))]
    assert "default-src 'self'" in reply.headers["content-security-policy"]


def test_without_gradio_the_page_says_how_to_get_it(monkeypatch):
    find = importlib.util.find_spec
    hide = lambda name, *rest: None if name == "gradio" else find(name, *rest)  # noqa: E731
    monkeypatch.setattr(page_module.importlib.util, "find_spec", hide)
    with serving(LastWordReader(), page=True) as url:
        assert 'pip install "bertvision[serve]"' in httpx.get(url).text
        body = {"question": "Who is Ada?", "context": "Ada"}
        assert httpx.post(f"{url}/answer", json=body).status_code == 200
