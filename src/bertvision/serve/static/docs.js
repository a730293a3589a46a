// The page at /docs: every route of openapi.json with its fields and limits, and a form to try it.

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** The values a field takes, in words: "text of at most 1000 characters". */
function kinds(field) {
  if (field.anyOf) return field.anyOf.flatMap(kinds);
  if (field.enum) return field.enum.map((value) => JSON.stringify(value));
  if (field.type === "array") return [`list of at most ${field.maxItems}`];
  if (field.type === "string") return [`text of at most ${field.maxLength} characters`];
  if ("maximum" in field) return [`${field.type} from ${field.minimum} to ${field.maximum}`];
  return [field.type ?? "anything"];
}

function row(name, field, required) {
  let takes = kinds(field).join(" or ");
  if (required.includes(name)) takes += "; required";
  else if (field.default !== undefined && field.default !== null) takes += `; default ${JSON.stringify(field.default)}`;
  return make("tr", {}, make("td", {}, make("code", {}, name)), make("td", {}, takes), make("td", {}, field.description ?? ""));
}

function tryIt(path, request) {
  const example = request.examples?.[0] ?? Object.fromEntries(request.required.map((name) => [name, "text"]));
  const body = make("textarea", { class: "request", rows: "6", spellcheck: "false", "aria-label": "Request" });
  body.value = JSON.stringify(example, null, 2);
  const output = make("output");
  const form = make("form", {}, body, make("div", { class: "actions" }, make("button", {}, "Send")), output);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const headers = { "content-type": "application/json" };
    const reply = await fetch(path.slice(1), { method: "POST", body: body.value, headers });
    const text = await reply.text();
    let shown = text;
    try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch { /* shown as it came */ }
    output.replaceChildren(make("pre", {}, `${reply.status}\n${shown}`));
  });
  return form;
}

function route(schema, method, path, about) {
  const title = make("h2", {}, make("code", {}, `${method.toUpperCase()} ${path}`));
  const section = make("section", { class: "route" }, title, make("p", {}, about.description ?? about.summary ?? ""));
  if (about.requestBody) {
    const reference = about.requestBody.content["application/json"].schema.$ref;
    const request = schema.components.schemas[reference.split("/").pop()];
    const head = make("tr", {}, ...["Field", "Takes", "Meaning"].map((text) => make("th", {}, text)));
    const rows = Object.entries(request.properties).map(([name, field]) => row(name, field, request.required ?? []));
    section.append(make("div", { class: "scroll" }, make("table", {}, head, ...rows)), tryIt(path, request));
  }
  const errors = Object.entries(about.responses).filter(([status]) => status !== "200");
  const words = errors.map(([status, answer]) => `${status} ${answer.description}`).join(" ");
  if (words) section.append(make("p", { class: "note" }, `Errors: ${words}`));
  return section;
}

const schema = await (await fetch("openapi.json")).json();
document.getElementById("title").textContent = `${schema.info.title} ${schema.info.version}`;
document.getElementById("about").textContent = schema.info.description;
for (const [path, methods] of Object.entries(schema.paths)) {
  for (const [method, about] of Object.entries(methods)) document.getElementById("routes").append(route(schema, method, path, about));
}
