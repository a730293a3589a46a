// A click on a heading sorts by that column: numbers from the highest, words from the first; a second click reverses it.
// Cells without a number go last.
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
