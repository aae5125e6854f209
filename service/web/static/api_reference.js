// What an OpenAPI document states about operations and schemas. Pure functions.

const METHODS = ["get", "post", "put", "patch", "delete"];
const BOUNDS = [
  ["minimum", "at least"],
  ["exclusiveMinimum", "above"],
  ["maximum", "at most"],
  ["exclusiveMaximum", "below"],
  ["minLength", "length at least"],
  ["maxLength", "length at most"],
  ["minItems", "length at least"],
  ["maxItems", "length at most"],
];

/**
 * The operations of a document by tag: `[[tag, [{ id, method, path, summary, ... }]]]`. Those of workers come last.
 *
 * @param {any} document
 * @returns {[string, Operation[]][]}
 */
export function operationsByTag(document) {
  /** @type {Map<string, Operation[]>} */
  const groups = new Map();
  for (const [path, item] of Object.entries(document.paths)) {
    for (const method of METHODS.filter((name) => item[name])) {
      const operation = item[method];
      const tag = operation.tags?.[0] ?? "other";
      if (!groups.has(tag)) groups.set(tag, []);
      const summary = (operation.summary ?? "").replaceAll("`", "");
      groups.get(tag)?.push({ ...operation, id: operation.operationId, method: method.toUpperCase(), path, summary });
    }
  }
  return [...groups].sort(([one], [other]) => Number(one === "worker") - Number(other === "worker"));
}

/**
 * Whether every word of a filter is in an operation's method, path, id or summary.
 *
 * @param {Operation} operation
 * @param {string} filter
 */
export function matches(operation, filter) {
  const text = `${operation.method} ${operation.path} ${operation.id} ${operation.summary}`.toLowerCase();
  return filter
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}

/**
 * @param {Schema} schema
 * @returns {string | undefined}
 */
const nameOf = (schema) => schema.$ref?.split("/").at(-1);

/**
 * The name and the schema that a schema refers to, `[null, schema]` for one without a reference.
 *
 * @param {any} document
 * @param {Schema} schema
 * @returns {[string | null, Schema]}
 */
export function resolve(document, schema) {
  const name = nameOf(schema);
  return name ? [name, document.components.schemas[name] ?? {}] : [null, schema];
}

/**
 * The type of a schema in words: `text or null`, `list of JobResource`.
 *
 * @param {Schema} schema
 * @returns {string}
 */
export function typeText(schema) {
  const name = nameOf(schema);
  if (name) return name;
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((/** @type {unknown} */ value) => JSON.stringify(value)).join(" or ");
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return [...new Set(choices.map(typeText))].join(" or ");
  if (schema.type === "array") return schema.items ? `list of ${typeText(schema.items)}` : "list";
  if (schema.type === "object" || schema.additionalProperties) {
    const values = schema.additionalProperties;
    return values && typeof values === "object" && Object.keys(values).length
      ? `object of ${typeText(values)}`
      : "object";
  }
  if (Array.isArray(schema.type)) return schema.type.join(" or ");
  return schema.type === "string" ? (schema.format ?? "text") : (schema.type ?? "any");
}

/**
 * The names of the schemas in a type.
 *
 * @param {Schema} schema
 * @returns {string[]}
 */
export function namesIn(schema) {
  const name = nameOf(schema);
  if (name) return [name];
  const parts = [...(schema.anyOf ?? []), ...(schema.oneOf ?? []), ...(schema.allOf ?? [])];
  for (const part of [schema.items, schema.additionalProperties])
    if (part && typeof part === "object") parts.push(part);
  return [...new Set(parts.flatMap(namesIn))];
}

/**
 * What a value must satisfy beside its type, in words.
 *
 * @param {Schema} schema
 */
export function limitsText(schema) {
  const all = [schema, ...(schema.anyOf ?? [])];
  const limits = all.flatMap((one) =>
    BOUNDS.filter(([name]) => one[name] !== undefined).map(([name, words]) => `${words} ${one[name]}`),
  );
  const patterns = all.filter((one) => one.pattern).map((one) => `pattern ${one.pattern}`);
  return [...new Set([...limits, ...patterns])].join("; ");
}

/**
 * The fields of an object's schema: `[{ name, required, schema }]`.
 *
 * @param {Schema} schema
 * @returns {{ name: string, required: boolean, schema: Schema }[]}
 */
export function fieldsOf(schema) {
  const required = new Set(schema.required ?? []);
  return Object.entries(schema.properties ?? {}).map(([name, field]) => ({
    name,
    required: required.has(name),
    schema: field,
  }));
}

/**
 * The parts of a request's or a response's content: `[{ media, schema, example }]`.
 *
 * @param {any} part
 * @returns {{ media: string, schema: Schema, example: any }[]}
 */
export function contentsOf(part) {
  return Object.entries(part?.content ?? {}).map(([media, content]) => ({
    media,
    schema: content.schema ?? {},
    example: content.example ?? Object.values(content.examples ?? {})[0]?.value,
  }));
}
