const METHODS = ["get", "post"];

/* JSON with what is short on one line. */
function written(value, indent) {
  const line = JSON.stringify(value, null, 1).replace(/\s+/g, " ");
  if (line.length < 80 || value === null || typeof value !== "object") return line;
  const inner = indent + "  ", list = Array.isArray(value);
  const items = Object.entries(value).map(([name, item]) => inner + (list ? "" : `"${name}": `) + written(item, inner));
  return `${list ? "[" : "{"}\n${items.join(",\n")}\n${indent}${list ? "]" : "}"}`;
}

/* A schema; what it refers to is a link to where that is shown. */
function schema(value) {
  const parts = written(value, "").split(/("#\/components\/schemas\/\w+")/);
  return element("pre", null, ...parts.map((part, i) => {
    if (i % 2 === 0) return part;
    const name = part.slice(1, -1).split("/").pop();
    return element("a", { href: `#schema-${name}` }, name);
  }));
}

function contents(content) {
  return Object.entries(content || {}).map(([kind, { schema: given }]) =>
    element("div", null, element("code", null, kind), given ? schema(given) : null));
}

function operation(method, path, parameters, given) {
  const rows = [...(parameters || []), ...(given.parameters || [])].map((one) =>
    [one.name, `${one.in}, ${one.required ? "required" : "optional"}`, one.description || `here ${one.example}`]);
  const table = element("table", { class: "text" });
  fillTable(table, ["Parameter", "Where", "Meaning"], rows);
  const answers = element("table", { class: "text" });
  fillTable(answers, ["Status", "Meaning", "Headers"], Object.entries(given.responses).map(([status, answer]) =>
    [status, answer.description, Object.keys(answer.headers || {}).join(", ")]));
  return element("details", { class: "operation" },
    element("summary", null, element("b", { class: method }, method.toUpperCase()), " ", element("code", null, path), " ", given.summary,
      given.security ? element("small", null, " needs a key") : null),
    given.description ? element("p", null, ...given.description.split("`").map((part, i) => i % 2 ? element("code", null, part) : part)) : null,
    rows.length ? table : null,
    given.requestBody ? element("div", null, element("h3", null, "Body"), ...contents(given.requestBody.content)) : null,
    element("h3", null, "Answers"), answers, ...contents(given.responses["200"].content));
}

async function showDocument() {
  const found = await (await fetch("/openapi.json")).json();
  document.getElementById("about").replaceChildren(`${found.info.title} ${found.info.version}. ${found.info.description} `,
    element("a", { href: "/openapi.json" }, "openapi.json"));
  const paths = Object.entries(found.paths).flatMap(([path, item]) => METHODS.filter((method) => item[method]).map((method) =>
    operation(method, path, item.parameters, item[method])));
  const schemas = Object.entries(found.components.schemas).map(([name, value]) =>
    element("section", { id: `schema-${name}` }, element("h3", null, name), schema(value)));
  document.getElementById("paths").replaceChildren(...paths, element("h2", null, "Schemas"), ...schemas);
}

showDocument();
