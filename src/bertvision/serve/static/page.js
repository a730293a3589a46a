// The page at /: sends question and text to /answer and shows the result.

const CANDIDATES = 5;
const LIGHTHOUSE =
  "The lighthouse of Cordouan stands at the mouth of the Gironde, seven kilometres out at sea. Louis de Foix began it " +
  "in 1584; it was first lit in 1611, after his death. In 1823 Augustin Fresnel chose it for the first of his new " +
  "lenses. Its lamp has been electric since 1948, and keepers still live there.";
const BREAD =
  "Rye dough is wetter than wheat dough and hardly needs kneading. Bakers raise it with sourdough, whose acids keep " +
  "the enzymes of the flour from turning its starch to sugar. The loaf is baked for an hour and is best a day old.";
const EXAMPLES = [
  ["Who began the lighthouse?", LIGHTHOUSE],
  ["When was it first lit?", LIGHTHOUSE],
  ["Who painted the lighthouse?", LIGHTHOUSE],
  ["How is rye dough raised?", BREAD],
];

const field = (id) => document.getElementById(id);

/** An element with attributes and children; strings become text, never markup. */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** 0.126 -> "13 %"; only 0 and 1 are shown as 0 % and 100 %. */
function percent(share) {
  const value = 100 * share;
  if (value > 0 && value < 1) return "< 1 %";
  if (value > 99 && value < 100) return "> 99 %";
  return `${Math.round(value)} %`;
}

function headline(best) {
  const found = best.answer
    ? make("p", { class: "answer" }, best.answer)
    : make("p", { class: "answer none" }, "No answer in this text");
  const chance = `Probability that the text holds no answer: ${percent(best.no_answer_score)}.`;
  return [found, make("p", { class: "note" }, chance)];
}

/** The text with the answer marked. Offsets of the API count code points, those of JavaScript do not. */
function marked(context, { start, end }) {
  const points = Array.from(context);
  const box = make("div", { class: "context", tabindex: "0", "aria-label": "The text with its answer marked" });
  box.append(points.slice(0, start).join(""));
  if (end > start) box.append(make("mark", {}, points.slice(start, end).join("")));
  box.append(points.slice(end).join(""));
  return box;
}

function candidates(found) {
  const rows = found.map((one) => [one.answer || "no answer", one.score]);
  if (found.every((one) => one.answer)) rows.push(["no answer", found[0].no_answer_score]);
  const grid = make("div", { class: "rows" });
  for (const [text, share] of rows) {
    const bar = make("i");
    bar.style.width = `${100 * Math.min(Math.max(share, 0), 1)}%`;
    grid.append(make("span", {}, text), make("div", { class: "bar" }, bar), make("span", { class: "percent" }, percent(share)));
  }
  return [make("h2", {}, "Candidates"), grid];
}

function layers(shares) {
  const highest = Math.max(...shares) || 1;
  const words = shares.map((share, layer) => `layer ${layer} ${percent(share)}`);
  const chart = make("div", { class: "layers", role: "img", "aria-label": words.join(", ") });
  shares.forEach((share, layer) => {
    const bar = make("i");
    bar.style.height = `${(80 * share) / highest}%`;
    chart.append(make("div", { title: words[layer] }, bar, String(layer)));
  });
  return [make("h2", {}, "Layer contributions"), chart, make("p", { class: "note" }, "0 is the embedding output.")];
}

function show(context, found) {
  const best = found[0];
  const box = marked(context, best);
  const parts = [...headline(best), box, ...candidates(found), ...(best.layers ? layers(best.layers) : [])];
  field("result").replaceChildren(...parts);
  const mark = box.querySelector("mark"); // in a long text: scroll the box, and nothing else, to the answer
  if (mark) box.scrollTop = mark.offsetTop - box.clientHeight / 2;
}

function refuse(detail) {
  field("result").replaceChildren(make("p", { class: "refused", role: "alert" }, detail));
}

async function post(body) {
  const reply = await fetch("answer", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  return [reply.status, await reply.json()];
}

let topK = CANDIDATES;
let hasLayers = true; // an exported reader gives no layers
let latest = 0;

async function ask() {
  const number = ++latest;
  const body = { question: field("question").value, context: field("context").value, top_k: topK, layers: hasLayers };
  field("result").setAttribute("aria-busy", "true");
  try {
    let [status, reply] = await post(body);
    if (status === 422 && reply.detail.startsWith("layers:")) {
      hasLayers = false;
      [status, reply] = await post({ ...body, layers: false });
    }
    if (number !== latest) return; // another question was asked meanwhile
    if (status === 200) show(body.context, reply.answers[0].candidates);
    else refuse(reply.detail);
  } catch {
    if (number === latest) refuse("The server does not answer; is it still running?");
  } finally {
    if (number === latest) field("result").removeAttribute("aria-busy");
  }
}

async function start() {
  for (const [question, context] of EXAMPLES) {
    const button = make("button", { type: "button", class: "link" }, question);
    button.addEventListener("click", () => {
      field("question").value = question;
      field("context").value = context;
      ask();
    });
    field("examples").append(make("li", {}, button));
  }
  field("form").addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  field("file").addEventListener("change", async (event) => {
    const [file] = event.target.files;
    if (file) field("context").value = await file.text();
  });
  const [health, schema] = await Promise.all(["health", "openapi.json"].map(async (path) => (await fetch(path)).json()));
  field("reader").textContent = `Reader: ${health.reader}.`;
  if ("/answer" in schema.paths) {
    topK = Math.min(CANDIDATES, schema.components.schemas.AnswerRequest.properties.top_k.maximum);
  } else {
    field("form").hidden = true;
    refuse(`This reader has other tasks (${health.tasks.join(", ")}); use the API.`);
  }
}

start();
