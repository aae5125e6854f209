// The positions of fields in a YAML text, so that an error is shown at its line and a field can be changed in place.
// It reads the parts of YAML that specs use: sections, braces, lists and scalars. Only the service validates a spec.

/**
 * Every field by its dotted path: its `line` from 0, and the range `from`, `to` of its value in the text.
 *
 * @param {string} text
 */
export function fieldsOf(text) {
  /** @type {Map<string, YamlField>} */
  const fields = new Map();
  const lines = text.split("\n");
  const starts = [];
  let offset = 0;
  for (const line of lines) {
    starts.push(offset);
    offset += line.length + 1;
  }
  /** @type {{ indent: number, path: string, items: number }[]} */
  const open = []; // the enclosing sections: indent, path, number of list items so far

  for (let n = 0; n < lines.length; n += 1) {
    const comment = lines[n].search(/(^|\s)#/);
    const body = (comment < 0 ? lines[n] : lines[n].slice(0, comment)).trimEnd();
    let indent = body.search(/\S/);
    if (indent < 0) continue;
    const isItem = /^-(\s|$)/.test(body.slice(indent));
    while (open.length && (open.at(-1).indent > indent || (open.at(-1).indent === indent && !isItem))) open.pop();
    let path = open.at(-1)?.path ?? "";
    if (isItem && open.length) {
      path = join(path, String(open.at(-1).items++));
      const skipped = (/^-\s*/.exec(body.slice(indent))?.[0] ?? "").length;
      fields.set(path, { line: n, from: starts[n] + indent + skipped, to: starts[n] + body.length });
      open.push({ indent: indent + 1, path, items: 0 });
      indent += skipped;
    }
    const match = /^("[^"]*"\s*|'[^']*'\s*|[^\s"'{}[\],#][^:#]*):(\s+|$)/.exec(body.slice(indent));
    const from = starts[n] + indent + (match ? match[0].length : 0);
    if (match) path = join(path, unquoted(match[1].trimEnd()));
    const field = { line: n, indent, from, to: starts[n] + body.length };
    if (match) fields.set(path, field);
    const first = text[from];
    if (first === '"' || first === "'") field.to = scalarEnd(text, from, "");
    if (match && from >= field.to) open.push({ indent, path, items: 0 });
    else if (first === "{" || first === "[") {
      field.to = readFlow(text, from, path, fields);
      while (n + 1 < lines.length && starts[n + 1] < field.to) n += 1;
    } else if (match && /^[|>][+-]?$/.test(body.slice(indent + match[0].length))) {
      while (n + 1 < lines.length && (!lines[n + 1].trim() || lines[n + 1].search(/\S/) > indent)) n += 1;
    }
  }
  return fields;
}

/**
 * Read the fields between the braces or brackets that begin at `start`; the index after them.
 *
 * @param {string} text
 * @param {number} start
 * @param {string} path
 * @param {Map<string, YamlField>} fields
 * @returns {number}
 */
function readFlow(text, start, path, fields) {
  const isMap = text[start] === "{";
  let index = start + 1;
  for (let item = 0; index < text.length; ) {
    index = skipSpace(text, index);
    if (text[index] === "}" || text[index] === "]") return index + 1;
    if (text[index] === ",") {
      index += 1;
      continue;
    }
    const begin = index;
    let name = String(item++);
    if (isMap) {
      index = scalarEnd(text, index, ":,}]");
      name = unquoted(text.slice(begin, index).trim());
      if (text[index] === ":") index = skipSpace(text, index + 1);
    }
    const own = join(path, name);
    const field = { line: text.slice(0, begin).split("\n").length - 1, from: index, to: index };
    fields.set(own, field);
    index =
      text[index] === "{" || text[index] === "[" ? readFlow(text, index, own, fields) : scalarEnd(text, index, ",}]");
    field.to = field.from + text.slice(field.from, index).trimEnd().length;
    if (index === begin) index += 1;
  }
  return index;
}

/**
 * The index after white space and comments.
 *
 * @param {string} text
 * @param {number} start
 */
function skipSpace(text, start) {
  let index = start;
  for (;;) {
    while (/\s/.test(text[index] ?? "")) index += 1;
    if (text[index] !== "#") return index;
    while (index < text.length && text[index] !== "\n") index += 1;
  }
}

/**
 * The end of a scalar: before one of the delimiters, or at the end of the line.
 *
 * @param {string} text
 * @param {number} start
 * @param {string} delimiters
 */
function scalarEnd(text, start, delimiters) {
  let index = start;
  const quote = text[index] === '"' || text[index] === "'" ? text[index] : null;
  if (quote) {
    const end = text.indexOf(quote, index + 1);
    return end < 0 ? text.length : end + 1;
  }
  while (index < text.length && text[index] !== "\n" && !delimiters.includes(text[index])) index += 1;
  return index;
}

/**
 * @param {string} path
 * @param {string} name
 */
const join = (path, name) => (path ? `${path}.${name}` : name);
/** @param {string} name */
const unquoted = (name) => name.replace(/^(["'])(.*)\1$/, "$2");

/**
 * The line of a field, or of the nearest enclosing section in the text; null if there is none.
 *
 * @param {Map<string, YamlField>} fields
 * @param {string | null} param
 */
export function lineOf(fields, param) {
  for (let path = param; path; path = path.slice(0, Math.max(0, path.lastIndexOf(".")))) {
    const field = fields.get(path);
    if (field) return field.line;
  }
  return null;
}

/**
 * The text with a field set; a missing field is inserted in its section.
 *
 * @param {string} text
 * @param {string} path
 * @param {unknown} value
 */
export function setField(text, path, value) {
  return setYaml(
    text,
    path,
    typeof value === "string" && /^[A-Za-z][\w.-]*$/.test(value) ? value : JSON.stringify(value),
  );
}

/**
 * The text without a field; the lines or the separator of its value go with it.
 *
 * @param {string} text
 * @param {string} path
 */
export function removeField(text, path) {
  const field = fieldsOf(text).get(path);
  if (!field) return text;
  const { indent } = field;
  if (indent === undefined) {
    // between braces
    const begin = Math.max(text.lastIndexOf("{", field.from - 1), text.lastIndexOf(",", field.from - 1));
    const next = /^\s*,\s*/.exec(text.slice(field.to));
    if (next)
      return text.slice(0, begin + 1) + (text[begin] === "," ? " " : "") + text.slice(field.to + next[0].length);
    return text.slice(0, text[begin] === "," ? begin : begin + 1) + text.slice(field.to);
  }
  const lines = text.split("\n");
  let end = text.slice(0, field.to).split("\n").length;
  while (end < lines.length && lines[end].trim() && lines[end].search(/\S/) > indent) end += 1;
  return [...lines.slice(0, field.line), ...lines.slice(end)].join("\n");
}

/**
 * @param {string} text
 * @param {string} path
 * @param {string} yaml
 * @returns {string}
 */
function setYaml(text, path, yaml) {
  const fields = fieldsOf(text);
  const field = fields.get(path);
  if (field && field.to > field.from) return text.slice(0, field.from) + yaml + text.slice(field.to);
  const [section, name] = [path.slice(0, Math.max(0, path.lastIndexOf("."))), path.slice(path.lastIndexOf(".") + 1)];
  if (field) return `${text.slice(0, field.from).trimEnd()} ${yaml}${text.slice(field.from)}`;
  if (!section) return `${text.trimEnd()}\n${name}: ${yaml}\n`;
  const parent = fields.get(section);
  if (!parent) return setYaml(text, section, `{${name}: ${yaml}}`);
  if (text[parent.from] === "{") {
    const rest = text.slice(parent.from + 1);
    return `${text.slice(0, parent.from + 1)}${name}: ${yaml}${rest.trimStart().startsWith("}") ? "" : ", "}${rest}`;
  }
  const lines = text.split("\n");
  lines.splice(parent.line + 1, 0, `${" ".repeat((parent.indent ?? 0) + 2)}${name}: ${yaml}`);
  return lines.join("\n");
}
