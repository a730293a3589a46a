"""How the page looks, and the few lines of script that sort its tables. All of it goes inside the page itself."""

CSS = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --soft: #5b6470; --rule: #d8dde3; --tint: #f3f5f8;
  --mark: #0b5cad; --right: #cfe8d8; --wrong: #f9dcc4; --warn: #8a4b00; --warn-tint: #fff4e0; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171b; --ink: #e4e7eb; --soft: #9aa4b0; --rule: #343b44; --tint: #1d2228;
    --mark: #7cb8ff; --right: #14503a; --wrong: #6b3410; --warn: #ffc46b; --warn-tint: #33270f; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 84rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { margin: 0 0 .75rem; font-size: 1.7rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 2.75rem 0 .75rem; padding-top: .75rem; border-top: 1px solid var(--rule); font-size: 1.3rem;
  overflow-wrap: anywhere; }
h3 { margin: 1.75rem 0 .5rem; font-size: 1.02rem; }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: 1.2rem 0 0; padding: 0; list-style: none;
  font-size: .92rem; max-width: none; }
a { color: var(--mark); text-underline-offset: .15em; overflow-wrap: anywhere; }
details { margin: .4rem 0; padding: .1rem .8rem; border-left: .2rem solid var(--rule); }
details[open] { padding-bottom: .6rem; }
summary { cursor: pointer; padding: .25rem 0; overflow-wrap: anywhere; }
summary:hover, summary:focus-visible { color: var(--mark); }
blockquote { margin: .75rem 0; max-width: 46rem; font-size: .95rem; overflow-wrap: anywhere; white-space: pre-line; }
mark { padding: 0 .12em; border-radius: .15em; background: var(--right); color: inherit;
  text-decoration: underline; text-underline-offset: .15em; }
mark.wrong { background: var(--wrong); text-decoration-style: double; }
p, ul, dl { max-width: 46rem; }
.lead { font-size: 1.06rem; overflow-wrap: anywhere; }
.note { color: var(--soft); font-size: .9rem; }
.badge { max-width: 46rem; margin: 1rem 0; padding: .7rem 1rem; border-left: .3rem solid var(--warn);
  border-radius: .3rem; background: var(--warn-tint); color: var(--warn); overflow-wrap: anywhere; }
.badge ul { margin: .3rem 0 0; padding-left: 1.2rem; }
.scroll { overflow-x: auto; margin: 1rem 0; }
.scroll:focus-visible { outline: 2px solid var(--mark); }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .38rem; text-align: right; white-space: nowrap; }
th { border-bottom: 2px solid var(--rule); vertical-align: bottom; white-space: normal; min-width: 3rem; }
th button { all: unset; cursor: pointer; color: var(--soft); font-weight: 600; }
th button:hover, th button:focus-visible { color: var(--mark); text-decoration: underline; }
th[aria-sort=ascending] button::after { content: " ↑"; }
th[aria-sort=descending] button::after { content: " ↓"; }
.word { text-align: left; }
.name { position: sticky; left: 0; background: var(--paper); }
td.long { white-space: normal; min-width: 12rem; }
th.wide { min-width: 7rem; }
tbody tr:hover, tbody tr:hover .name { background: var(--tint); }
tr.starts td { border-top: 1px solid var(--rule); }
td strong { color: var(--mark); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 2rem; }
figure { margin: 0; max-width: 36rem; }
figcaption { font-size: .9rem; font-weight: 600; margin-bottom: .4rem; }
figure svg { display: block; width: 100%; height: auto; }
pre { padding: .9rem 1rem; overflow-x: auto; border-radius: .4rem; background: var(--tint);
  font: .85rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.25rem; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  td.long { min-width: 7rem; }
  table { font-size: .8rem; }
  th, td { padding: .3rem .25rem; }
  th { min-width: 2.2rem; }
  th.wide { min-width: 6rem; }
}
@media print {
  @page { size: landscape; margin: 12mm; }
  :root { color-scheme: light; --paper: #fff; --ink: #000; --soft: #444; --rule: #bbb; --tint: #f6f6f6; --mark: #000;
    --warn: #000; --warn-tint: #fff; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  .scroll, pre { overflow: visible; }
  pre { white-space: pre-wrap; }
  table { font-size: 7.5pt; }
  .name { position: static; }
  td.long { min-width: 11em; }
  th, td { padding: .15rem .3rem; }
  th button::after { content: none !important; }
  .badge { border: 1px solid #000; }
  figure, tr, .badge { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  nav { display: none; }
}
"""

# A click sorts by that column, numbers from the highest and words from the first; a second one turns it round.
# Cells without a number go last either way.
SCRIPT = """
for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => {
  const head = button.parentElement, body = head.closest("table").tBodies[0];
  const word = head.classList.contains("word"), now = head.getAttribute("aria-sort");
  const order = now === "descending" || (word && !now) ? 1 : -1;
  const key = row => { const cell = row.cells[head.cellIndex];
    return word ? cell.textContent : "value" in cell.dataset ? Number(cell.dataset.value) : null; };
  const compare = (a, b) => a === null ? (b === null ? 0 : 1) : b === null ? -1
    : order * (word ? a.localeCompare(b) : a - b);
  const rows = [...body.rows].sort((a, b) => compare(key(a), key(b)));
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", order === 1 ? "ascending" : "descending");
  for (const row of rows) { row.classList.remove("starts"); body.append(row); }
});
addEventListener("beforeprint", () => { for (const fold of document.querySelectorAll("details")) fold.open = true; });
"""
