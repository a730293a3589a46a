"""An answer as HTML: marked in its context, with its rivals, the chance of none, and the layers that spoke."""

import html
from collections.abc import Sequence
from typing import Any

# Colours come from the page's theme, so that light and dark both work.
CSS = """
.bv-answer { font-size: 1.35rem; font-weight: 600; margin: 0 0 .2rem; overflow-wrap: anywhere; }
.bv-none { opacity: .75; }
.bv-note { opacity: .75; font-size: .9rem; margin: 0 0 1rem; }
.bv-context { white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.65; max-height: 24rem; overflow-y: auto;
  padding: .8rem 1rem; border: 1px solid var(--border-color-primary); border-radius: .5rem; }
.bv-context mark { background: #ffd84d; color: #1b1f24; padding: .05em .15em; border-radius: .2em; }
.bv h3 { font-size: 1rem; font-weight: 600; margin: 1.2rem 0 .5rem; }
.bv-rows { display: grid; grid-template-columns: minmax(45%, 1fr) minmax(3rem, 12rem) 3.4rem; gap: .35rem .8rem;
  align-items: center; }
.bv-rows span { overflow-wrap: break-word; min-width: 0; }
.bv-bar { height: .6rem; border-radius: .3rem; background: var(--border-color-primary); overflow: hidden; }
.bv-bar i { display: block; height: 100%; background: var(--color-accent); }
.bv-percent { text-align: right; font-variant-numeric: tabular-nums; }
.bv-layers { display: flex; align-items: flex-end; gap: .25rem; height: 7.5rem; }
.bv-layers div { flex: 1; min-width: 0; max-width: 3rem; height: 100%; display: flex; flex-direction: column;
  justify-content: flex-end; text-align: center; font-size: .75rem; font-variant-numeric: tabular-nums; }
.bv-layers i { display: block; border-radius: .2rem .2rem 0 0; background: var(--color-accent); min-height: 1px; }
.bv-refused { padding: .8rem 1rem; border-left: .3rem solid #c2410c; border-radius: .3rem;
  background: var(--background-fill-secondary); overflow-wrap: anywhere; }
"""
NOTHING_YET = '<p class="bv-note">The answer will stand here.</p>'


def answer_html(context: str, candidates: Sequence[dict[str, Any]]) -> str:
    """The whole result. candidates: as from POST /answer, the best first, at least one."""
    best = candidates[0]
    parts = [_headline(best), _context(context, best["start"], best["end"]), _candidates(candidates)]
    if best.get("layers"):
        parts.append(_layers(best["layers"]))
    return f'<div class="bv">{"".join(parts)}</div>'


def refused_html(detail: str) -> str:
    """Why there is no result."""
    return f'<p class="bv-refused" role="alert">{html.escape(detail)}</p>'


def _headline(best: dict[str, Any]) -> str:
    none = f"The chance that the text holds no answer is {percent(best['no_answer_score'])}."
    if best["answer"]:
        return f'<p class="bv-answer">{html.escape(best["answer"])}</p><p class="bv-note">{none}</p>'
    return f'<p class="bv-answer bv-none">No answer in this text</p><p class="bv-note">{none}</p>'


def _context(context: str, start: int, end: int) -> str:
    marked = f"<mark>{html.escape(context[start:end])}</mark>" if end > start else ""
    before, after = html.escape(context[:start]), html.escape(context[end:])
    return (
        f'<div class="bv-context" tabindex="0" aria-label="The text, its answer marked">{before}{marked}{after}</div>'
    )


def _candidates(candidates: Sequence[dict[str, Any]]) -> str:
    rows = [(one["answer"] or "no answer", one["score"]) for one in candidates]
    if all(one["answer"] for one in candidates):
        rows.append(("no answer", candidates[0]["no_answer_score"]))
    shown = "".join(
        f'<span>{html.escape(text)}</span>{_bar(share)}<span class="bv-percent">{percent(share)}</span>'
        for text, share in rows
    )
    return f'<h3>Candidates</h3><div class="bv-rows">{shown}</div>'


def _bar(share: float) -> str:
    return f'<div class="bv-bar"><i style="width:{100 * min(max(share, 0), 1):.1f}%"></i></div>'


def _layers(shares: Sequence[float]) -> str:
    highest = max(shares) or 1
    bars = "".join(
        f'<div title="layer {layer}: {percent(share)}"><i style="height:{80 * share / highest:.1f}%"></i>{layer}</div>'
        for layer, share in enumerate(shares)
    )
    spoken = ", ".join(f"layer {layer} {percent(share)}" for layer, share in enumerate(shares))
    return (
        '<h3>Which layers spoke</h3><div class="bv-layers" role="img" '
        f'aria-label="{spoken}">{bars}</div><p class="bv-note">0 is the embedding output.</p>'
    )


def percent(share: float) -> str:
    """0.1234 -> 12 %; what is neither nothing nor all is never shown as such."""
    value = 100 * share
    if 0 < value < 1:
        return "< 1 %"
    if 99 < value < 100:
        return "> 99 %"
    return f"{value:.0f} %"
