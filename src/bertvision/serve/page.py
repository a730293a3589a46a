"""The web page at /: a form that asks the same API, and shows the answer where it stands."""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from bertvision.serve.limits import Limits
from bertvision.serve.marked import CSS, NOTHING_YET, answer_html, refused_html

CANDIDATES = 5
# In a long text the answer may stand far down: the box it is shown in, and nothing else, is scrolled to it.
IN_SIGHT = """
new MutationObserver(() => {
  const mark = element.querySelector(".bv-context mark"), box = mark && mark.closest(".bv-context");
  if (box) box.scrollTop += mark.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientHeight / 2;
}).observe(element, { childList: true, subtree: true });
"""
# What the browser needs of Gradio. Its other doors (uploads, proxies, files, recordings) stay shut.
PATHS = (
    "/",
    "/config",
    "/theme.css",
    "/favicon.ico",
    "/robots.txt",
    "/manifest.json",
    "/assets/",
    "/static/",
    "/svelte/",
    "/gradio_api/info",
    "/gradio_api/app_id",
    "/gradio_api/startup-events",
    "/gradio_api/heartbeat/",
    "/gradio_api/run/predict",
    "/gradio_api/queue/join",
    "/gradio_api/queue/data",
    "/gradio_api/cancel",
    "/gradio_api/reset",
)
LIGHTHOUSE = (
    "The lighthouse of Cordouan stands at the mouth of the Gironde, seven kilometres out at sea. Louis de Foix began "
    "it in 1584; it was first lit in 1611, after his death. In 1823 Augustin Fresnel chose it for the first of his new "
    "lenses. Its lamp has been electric since 1948, and keepers still live there."
)
BREAD = (
    "Rye dough is wetter than wheat dough and hardly needs kneading. Bakers raise it with sourdough, whose acids keep "
    "the enzymes of the flour from turning its starch to sugar. The loaf is baked for an hour and is best a day old."
)
EXAMPLES = [
    ["Who began the lighthouse?", LIGHTHOUSE],
    ["When was it first lit?", LIGHTHOUSE],
    ["Who painted the lighthouse?", LIGHTHOUSE],
    ["How is rye dough raised?", BREAD],
]


@dataclass(frozen=True)
class Page:
    """paths: those the page needs, for the guard. close: lets go of the browsers that have it open."""

    paths: tuple[str, ...]
    close: Callable[[], None] = lambda: None


def mount_page(app: FastAPI, limits: Limits, wanted: bool = True) -> Page:
    """Puts the page at / of the API it asks. Where it is not wanted or not possible, a line that says so."""
    if not wanted:
        return _plain(app, "The page is switched off.")
    if "/answer" not in {getattr(route, "path", "") for route in app.routes}:
        return _plain(app, "This reader has no spans to mark in a text; ask it over the API.")
    if importlib.util.find_spec("gradio") is None:
        return _plain(app, 'For the page that belongs here, <code>pip install "bertvision[serve]"</code>.')
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before the import, which looks at it
    import gradio
    from fastapi.middleware.cors import CORSMiddleware

    app.add_middleware(CORSMiddleware, allow_origins=())  # Gradio would allow other sites more
    gradio.mount_gradio_app(
        app,
        _blocks(app, limits),
        "/",
        theme=_theme(),
        css=CSS,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        enable_monitoring=False,
        pwa=False,
        mcp_server=False,
    )
    mounted: Any = app.routes[-1]
    return Page(PATHS, mounted.app.stop_event.set)


def _plain(app: FastAPI, sentence: str) -> Page:
    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> str:
        return f'<!DOCTYPE html><title>bertvision</title><p>{sentence} The API: <a href="docs">docs</a>.</p>'

    return Page(("/",))


def _theme() -> Any:
    from gradio.themes import Default

    # Names of fonts every system has; Gradio's own choice would be fetched from elsewhere.
    return Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])


def _blocks(app: FastAPI, limits: Limits) -> Any:
    import gradio
    import httpx

    # In-process, so that the page is checked, queued and refused like every other client of the API.
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    client = httpx.AsyncClient(transport=transport, base_url="http://page", timeout=None)

    async def ask(question: str, context: str) -> str:
        request = {"question": question, "context": context, "top_k": min(CANDIDATES, limits.top_k), "layers": True}
        reply = await client.post("/answer", json=request)
        if reply.status_code == 422 and reply.json()["detail"].startswith("layers:"):  # not with every engine
            reply = await client.post("/answer", json=request | {"layers": False})
        if reply.status_code != 200:
            return refused_html(reply.json()["detail"])
        return answer_html(context, reply.json()["answers"][0]["candidates"])

    with gradio.Blocks(title="bertvision", analytics_enabled=False) as blocks:
        gradio.Markdown("# Ask a text\nThe answer is a stretch of the text itself, or that it holds none.")
        with gradio.Row():
            with gradio.Column():
                question = gradio.Textbox(label="Question", placeholder="Who began the lighthouse?", max_lines=3)
                context = gradio.Textbox(label="Context", placeholder="Paste a text here.", lines=10, max_lines=20)
                button = gradio.Button("Ask", variant="primary")
            with gradio.Column():
                shown = gradio.HTML(NOTHING_YET, label="Answer", js_on_load=IN_SIGHT)
        labels = [asked for asked, _ in EXAMPLES]
        gradio.Examples(
            EXAMPLES,
            [question, context],
            shown,
            ask,
            label="Examples",
            example_labels=labels,
            cache_examples=False,
            run_on_click=True,
            api_visibility="private",
        )
        for event in (button.click, question.submit):
            event(ask, [question, context], shown, concurrency_limit=None, api_visibility="private")
    blocks.queue(max_size=limits.queue)
    return blocks
