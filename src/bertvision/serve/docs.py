"""The API's documentation as one page that loads nothing: every route, its fields and limits, and a form to try it."""

import html
import json
from collections.abc import Iterator
from typing import Any

from bertvision.report.style import CSS

STYLE = """
main { max-width: 60rem; margin: auto; }
textarea { width: 100%; min-height: 9rem; padding: .7rem; border: 1px solid var(--rule); border-radius: .4rem;
  background: var(--tint); color: inherit; font: .85rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
button.send { padding: .45rem 1.2rem; border: 0; border-radius: .4rem; background: var(--mark); color: var(--paper);
  font: inherit; cursor: pointer; }
td { text-align: left; white-space: normal; vertical-align: top; } th { text-align: left; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
"""
SCRIPT = """
for (const form of document.querySelectorAll("form")) form.addEventListener("submit", async event => {
  event.preventDefault();
  const shown = form.querySelector("output");
  const reply = await fetch(form.dataset.path.slice(1), { method: "POST", body: form.elements.body.value,
    headers: { "content-type": "application/json" } });
  const text = await reply.text();
  let pretty = text;
  try { pretty = JSON.stringify(JSON.parse(text), null, 2); } catch { /* shown as it came */ }
  shown.innerHTML = "<pre></pre>";
  shown.firstChild.textContent = reply.status + "\\n" + pretty;
});
"""


def docs_page(schema: dict[str, Any]) -> str:
    """The page for an OpenAPI schema."""
    title = html.escape(f"{schema['info']['title']} {schema['info']['version']}")
    routes = "\n".join(
        _route(schema, method, path, about)
        for path, methods in schema["paths"].items()
        for method, about in methods.items()
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{CSS}{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
        f'<p class="lead">{html.escape(schema["info"]["description"])} For programs: '
        f'<a href="openapi.json">openapi.json</a>.</p>\n{routes}\n</main>\n'
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _route(schema: dict[str, Any], method: str, path: str, about: dict[str, Any]) -> str:
    parts = [f"<section><h2><code>{method.upper()} {html.escape(path)}</code></h2>"]
    parts.append(f"<p>{html.escape(about.get('description', about.get('summary', '')))}</p>")
    if "requestBody" in about:
        request = _resolved(schema, about["requestBody"]["content"]["application/json"]["schema"])
        rows = "".join(_field(name, field, request) for name, field in request["properties"].items())
        parts.append(f'<div class="scroll"><table><tr><th>Field<th>Takes<th>Meaning</tr>{rows}</table></div>')
        parts.append(_form(path, request))
    problems = [f"{status} {answer['description']}" for status, answer in about["responses"].items() if status != "200"]
    if problems:
        parts.append(f'<p class="note">Refusals: {html.escape(" ".join(problems))}</p>')
    return "\n".join([*parts, "</section>"])


def _form(path: str, request: dict[str, Any]) -> str:
    example = request.get("examples", [dict.fromkeys(request["required"], "text")])[0]
    text = json.dumps(example, indent=2)
    return (
        f'<form data-path="{html.escape(path)}"><textarea name="body" aria-label="Request" spellcheck="false">'
        f'{html.escape(text)}</textarea>\n<button class="send">Send</button><output></output></form>'
    )


def _field(name: str, field: dict[str, Any], request: dict[str, Any]) -> str:
    takes = " or ".join(_kinds(field))
    if name in request.get("required", ()):
        takes += "; required"
    elif field.get("default") is not None:
        takes += f"; {json.dumps(field['default'])} if not given"
    meaning = html.escape(field.get("description", ""))
    return f"<tr><td><code>{html.escape(name)}</code></td><td>{html.escape(takes)}</td><td>{meaning}</td></tr>"


def _kinds(field: dict[str, Any]) -> Iterator[str]:
    """What a field takes, in words: `string, at most 1000 characters`."""
    if "anyOf" in field:
        for choice in field["anyOf"]:
            yield from _kinds(choice)
    elif "enum" in field:
        yield from map(json.dumps, field["enum"])
    elif field.get("type") == "array":
        yield f"a list of at most {field['maxItems']}"
    elif field.get("type") == "string":
        yield f"a text of at most {field['maxLength']} characters"
    elif "maximum" in field:
        yield f"{field['type']} from {field['minimum']:g} to {field['maximum']:g}"
    else:
        yield str(field.get("type", "anything"))


def _resolved(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    name = part["$ref"].rpartition("/")[2]
    return schema["components"]["schemas"][name]
