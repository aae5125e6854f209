// Where the fields of a YAML text stand, so that an error is shown at its line and a field can be changed in place.
// It reads what specs are written in: sections by indentation or in braces, lists, scalars. The service alone judges.

/** Every field by its dotted path: `line` from 0, and where its value begins and ends (`from`, `to`) in the text. */
export function fieldsOf(text) {
  const found = new Map();
  const lines = text.split("\n");
  const starts = [];
  let offset = 0;
  for (const line of lines) { starts.push(offset); offset += line.length + 1; }
  const open = []; // the sections around: indent, path, number of items so far

  for (let n = 0; n < lines.length; n += 1) {
    const body = lines[n].replace(/(^|\s)#.*$/, "").trimEnd();
    let indent = body.search(/\S/);
    if (indent < 0) continue;
    const isItem = /^-(\s|$)/.test(body.slice(indent));
    while (open.length && (open.at(-1).indent > indent || (open.at(-1).indent === indent && !isItem))) open.pop();
    let path = open.at(-1)?.path ?? "";
    if (isItem && open.length) {
      path = join(path, String(open.at(-1).items++));
      const skipped = /^-\s*/.exec(body.slice(indent))[0].length;
      found.set(path, { line: n, from: starts[n] + indent + skipped, to: starts[n] + body.length });
      open.push({ indent: indent + 1, path, items: 0 });
      indent += skipped;
    }
    const match = /^("[^"]*"|'[^']*'|[^\s"'{}[\],#][^:#]*?)\s*:(\s+|$)/.exec(body.slice(indent));
    const from = starts[n] + indent + (match ? match[0].length : 0);
    if (match) path = join(path, plain(match[1]));
    const place = { line: n, indent, from, to: starts[n] + body.length };
    if (match) found.set(path, place);
    const first = text[from];
    if (first === '"' || first === "'") place.to = word(text, from, "");
    if (match && from >= place.to) open.push({ indent, path, items: 0 });
    else if (first === "{" || first === "[") {
      place.to = flow(text, from, path, found);
      while (n + 1 < lines.length && starts[n + 1] < place.to) n += 1;
    } else if (match && /^[|>][+-]?$/.test(body.slice(indent + match[0].length))) {
      while (n + 1 < lines.length && (!lines[n + 1].trim() || lines[n + 1].search(/\S/) > indent)) n += 1;
    }
  }
  return found;
}

/** What stands between braces or brackets from a place on; the place after them. */
function flow(text, start, path, found) {
  const isMap = text[start] === "{";
  let at = start + 1;
  for (let index = 0; at < text.length;) {
    at = gap(text, at);
    if (text[at] === "}" || text[at] === "]") return at + 1;
    if (text[at] === ",") { at += 1; continue; }
    const begin = at;
    let name = String(index++);
    if (isMap) {
      at = word(text, at, ":,}]");
      name = plain(text.slice(begin, at).trim());
      if (text[at] === ":") at = gap(text, at + 1);
    }
    const own = join(path, name);
    const place = { line: text.slice(0, begin).split("\n").length - 1, from: at };
    found.set(own, place);
    at = text[at] === "{" || text[at] === "[" ? flow(text, at, own, found) : word(text, at, ",}]");
    place.to = place.from + text.slice(place.from, at).trimEnd().length;
    if (at === begin) at += 1;
  }
  return at;
}

function gap(text, at) {
  for (;;) {
    while (/\s/.test(text[at] ?? "")) at += 1;
    if (text[at] !== "#") return at;
    while (at < text.length && text[at] !== "\n") at += 1;
  }
}

/** The end of a scalar: before one of the signs, or at the line's end. */
function word(text, at, signs) {
  const quote = text[at] === '"' || text[at] === "'" ? text[at] : null;
  if (quote) {
    const end = text.indexOf(quote, at + 1);
    return end < 0 ? text.length : end + 1;
  }
  while (at < text.length && text[at] !== "\n" && !signs.includes(text[at])) at += 1;
  return at;
}

const join = (path, name) => (path ? `${path}.${name}` : name);
const plain = (name) => name.replace(/^(["'])(.*)\1$/, "$2");

/** The line of a field, or of the nearest section around it that is there; null: it is about the whole text. */
export function lineOf(fields, param) {
  for (let path = param; path; path = path.slice(0, Math.max(0, path.lastIndexOf(".")))) {
    if (fields.has(path)) return fields.get(path).line;
  }
  return null;
}

/** The text with a field set, where it stands or where it belongs. */
export function put(text, path, value) {
  const written = typeof value === "string" && /^[A-Za-z][\w.-]*$/.test(value) ? value : JSON.stringify(value);
  return place(text, path, written);
}

/** The text without a field that stands at its left edge, in a line of its own. */
export function without(text, name) {
  return text.split("\n").filter((line) => !line.startsWith(`${name}:`)).join("\n");
}

function place(text, path, written) {
  const fields = fieldsOf(text);
  const known = fields.get(path);
  if (known && known.to > known.from) return text.slice(0, known.from) + written + text.slice(known.to);
  const [section, name] = [path.slice(0, Math.max(0, path.lastIndexOf("."))), path.slice(path.lastIndexOf(".") + 1)];
  if (known) return `${text.slice(0, known.from).trimEnd()} ${written}${text.slice(known.from)}`;
  if (!section) return `${text.trimEnd()}\n${name}: ${written}\n`;
  const around = fields.get(section);
  if (!around) return place(text, section, `{${name}: ${written}}`);
  if (text[around.from] === "{") {
    const rest = text.slice(around.from + 1);
    return `${text.slice(0, around.from + 1)}${name}: ${written}${rest.trimStart().startsWith("}") ? "" : ", "}${rest}`;
  }
  const lines = text.split("\n");
  lines.splice(around.line + 1, 0, `${" ".repeat((around.indent ?? 0) + 2)}${name}: ${written}`);
  return lines.join("\n");
}
