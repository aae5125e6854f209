// The reference of the API. The body of an operation or a schema is made when it is opened.

import {
  contentsOf,
  fieldsOf,
  limitsText,
  matches,
  namesIn,
  operationsByTag,
  resolve,
  typeText,
} from "./api_reference.js";
import { call } from "./api.js";
import { markdown } from "./markdown.js";
import { byId, make, setText, toastError } from "./page.js";

/** @type {any} */
let reference;

/** @param {string} text */
const heading = (text) => make("h4", { text });

/**
 * A closed `<details>` whose content `body()` is made at the first opening.
 *
 * @param {Properties} properties
 * @param {Child} summary
 * @param {() => (Node | string)[]} body
 */
function folded(properties, summary, body) {
  const element = make("details", properties, summary);
  element.addEventListener("toggle", () => {
    if (element.open && element.childElementCount === 1) element.append(...body());
  });
  return element;
}

/**
 * @param {string} label
 * @param {string[]} heads
 * @param {Child[][][]} rows
 */
function table(label, heads, rows) {
  const head = make("tr", {}, ...heads.map((text) => make("th", { scope: "col", text })));
  const body = rows.map((cells) =>
    make("tr", {}, ...cells.map((cell, column) => make(column ? "td" : "th", column ? {} : { scope: "row" }, ...cell))),
  );
  const content = make("table", { class: "plain" }, make("thead", {}, head), make("tbody", {}, ...body));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, content);
}

/**
 * A value's type, limits, default and description, and the schemas that the type names.
 *
 * @param {Schema} schema
 * @param {string | null | undefined} description
 * @returns {Child[]}
 */
function meaning(schema, description = schema.description) {
  const limits = limitsText(schema);
  const rest = [limits, schema.default === undefined ? "" : `default ${JSON.stringify(schema.default)}`]
    .filter(Boolean)
    .join("; ");
  return [
    make("span", { class: "type", text: typeText(schema) }),
    rest ? make("small", { text: ` ${rest}` }) : null,
    ...(description ? markdown(description) : []),
    ...namesIn(schema).map(namedSchema),
  ];
}

/** @param {string} name */
function namedSchema(name) {
  return folded({ class: "schema" }, make("summary", {}, make("code", { text: name })), () => schemaBody(name));
}

/**
 * @param {string} name
 * @returns {(Node | string)[]}
 */
function schemaBody(name) {
  const [, schema] = resolve(reference, { $ref: `#/components/schemas/${name}` });
  const fields = fieldsOf(schema);
  const parts = schema.description ? markdown(schema.description) : [];
  if (!fields.length) return [...parts, make("p", {}, ...meaning(schema, null))];
  const rows = fields.map((field) => [
    [make("code", { text: field.name }), field.required ? make("small", { text: " required" }) : null].filter(Boolean),
    meaning(field.schema),
  ]);
  return [...parts, table(`Fields of ${name}`, ["Field", "Value"], rows)];
}

/**
 * @param {any} part
 * @returns {(Node | string)[]}
 */
function contents(part) {
  return contentsOf(part).flatMap(({ media, schema, example }) => {
    const text = typeof example === "string" ? example : JSON.stringify(example, null, 2);
    return [
      make("p", {}, make("code", { text: media }), ": ", make("span", { class: "type", text: typeText(schema) })),
      ...namesIn(schema).map(namedSchema),
      ...(example === undefined ? [] : [make("pre", { tabindex: "0", "aria-label": "Example", text })]),
    ];
  });
}

/** @param {Operation} operation */
function operationBody(operation) {
  const parameters = operation.parameters ?? [];
  const rows = parameters.map((one) => [
    [make("code", { text: one.name }), make("small", { text: ` ${one.in}${one.required ? ", required" : ""}` })],
    meaning(one.schema ?? {}, one.description),
  ]);
  const responses = Object.entries(operation.responses ?? {}).map(([status, response]) =>
    folded(
      { class: "schema" },
      make("summary", {}, make("code", { text: status }), ` ${response.description ?? ""}`),
      () => [
        ...contents(response),
        ...Object.entries(response.headers ?? {}).map(([name, header]) =>
          make("p", {}, make("code", { text: name }), `: ${header.description ?? ""}`),
        ),
      ],
    ),
  );
  return [
    ...(operation.description ? markdown(operation.description) : []),
    ...(rows.length ? [heading("Parameters"), table(`Parameters of ${operation.id}`, ["Name", "Value"], rows)] : []),
    ...(operation.requestBody ? [heading("Body"), ...contents(operation.requestBody)] : []),
    heading("Responses"),
    ...responses,
  ];
}

/** @param {Operation} operation */
function operationElement(operation) {
  const summary = make(
    "summary",
    {},
    make("span", { class: `method ${operation.method.toLowerCase()}`, text: operation.method }),
    make("code", { text: operation.path }),
    make("span", { text: operation.summary }),
  );
  const element = folded({ class: "operation", id: operation.id }, summary, () => operationBody(operation));
  element.addEventListener("toggle", () => {
    if (element.open) history.replaceState(null, "", `#${operation.id}`);
  });
  return element;
}

/**
 * Show the operations that match the filter, and hide groups without any.
 *
 * @param {[string, Operation[]][]} groups
 * @param {string} filter
 */
function filterOperations(groups, filter) {
  let shown = 0;
  for (const [tag, operations] of groups) {
    const visible = operations.filter((operation) => matches(operation, filter));
    for (const operation of operations) byId(operation.id).hidden = !visible.includes(operation);
    byId(`tag-${tag}`).hidden = visible.length === 0;
    shown += visible.length;
  }
  setText(byId("count"), `${shown} operations`);
}

function openLinked() {
  const element = document.getElementById(location.hash.slice(1));
  if (!(element instanceof HTMLDetailsElement) || !element.classList.contains("operation")) return;
  element.open = true;
  element.scrollIntoView();
}

async function show() {
  reference = await call("/openapi.json");
  const groups = operationsByTag(reference);
  setText(byId("version"), `${reference.info.version}, OpenAPI ${reference.openapi}`);
  byId("api").append(
    ...groups.map(([tag, operations]) =>
      make(
        "section",
        { class: "card", id: `tag-${tag}`, "aria-labelledby": `title-${tag}` },
        make("h2", { id: `title-${tag}`, text: tag[0].toUpperCase() + tag.slice(1) }),
        ...operations.map(operationElement),
      ),
    ),
  );
  const filter = byId("filter", HTMLInputElement);
  filter.addEventListener("input", () => filterOperations(groups, filter.value.trim()));
  filterOperations(groups, filter.value.trim());
  addEventListener("hashchange", openLinked);
  openLinked();
}

show().catch(toastError);
