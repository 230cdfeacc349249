// The interface as a page: what /openapi.json says, route by route.

const make = (tag, className, ...children) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
};

/// A schema in a word or two: `text`, `list of integer`, `one of "a", "b"`.
function kind(schema) {
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return `one of ${schema.enum.map((value) => JSON.stringify(value)).join(", ")}`;
  const options = schema.anyOf ?? schema.oneOf;
  if (options) return [...new Set(options.map(kind))].join(" or ");
  const types = [schema.type ?? "anything"].flat();
  return types.map((type) => (type === "array" && schema.items ? `list of ${kind(schema.items)}` : type)).join(" or ");
}

function limits(schema) {
  if (schema.description) return schema.description;
  const from = schema.minimum ?? schema.minLength ?? schema.minItems;
  const to = schema.maximum ?? schema.maxLength ?? schema.maxItems;
  if (from === undefined && to === undefined) return "";
  return `${from ?? "…"} to ${to ?? "…"}`;
}

function fields(schema) {
  const needed = new Set(schema.required ?? []);
  const head = make("tr", "", ...["Field", "Kind", "Limits"].map((text) => make("th", "", text)));
  const lines = Object.entries(schema.properties ?? {}).map(([name, field]) => {
    const label = make("code", "", name);
    const cells = [needed.has(name) ? make("b", "", label, " (needed)") : label, kind(field), limits(field)];
    return make("tr", "", ...cells.map((cell) => make("td", "", cell)));
  });
  return make("div", "scroll", make("table", "", head, ...lines));
}

function route(path, method, operation) {
  const section = make("section", "", make("h2", "", make("code", "", `${method.toUpperCase()} ${path}`)), make("p", "", operation.summary));
  const schema = operation.requestBody?.content["application/json"].schema;
  if (schema) section.append(fields(schema));
  const answers = Object.keys(operation.responses["200"].content).join(", ");
  section.append(make("p", "hint", `Answers with ${answers}${operation.security?.length === 0 ? "; needs no key" : ""}.`));
  return section;
}

const routes = document.getElementById("routes");
try {
  const document_ = await (await fetch("/openapi.json")).json();
  const sections = Object.entries(document_.paths).flatMap(([path, operations]) =>
    Object.entries(operations).map(([method, operation]) => route(path, method, operation)));
  const note = "Fields that are not listed are left alone or documented in docs/SERVER.md; errors have the shape of the API that was asked.";
  routes.replaceChildren(make("p", "", document_.info.description), ...sections, make("p", "hint", note));
} catch (error) {
  routes.textContent = `openapi.json cannot be read: ${error.message}`;
}
