// Markdown to elements. Text becomes text nodes only, so nothing a model writes can become markup or load anything.

const make = (tag, className, ...children) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
};

const INLINE = [
  [/^(`+)([\s\S]*?[^`])\1(?!`)/, (m) => make("code", "", m[2].replace(/^ (.*) $/, "$1"))],
  [/^\*\*([\s\S]+?)\*\*(?!\*)/, (m) => make("strong", "", ...inline(m[1]))],
  [/^__([\s\S]+?)__(?!\w)/, (m) => make("strong", "", ...inline(m[1]))],
  [/^~~([\s\S]+?)~~/, (m) => make("del", "", ...inline(m[1]))],
  [/^\*(?!\s)([\s\S]+?[^\s*])\*(?!\*)/, (m) => make("em", "", ...inline(m[1]))],
  [/^_(?!\s)([\s\S]+?[^\s_])_(?!\w)/, (m) => make("em", "", ...inline(m[1]))],
  [/^!?\[([^\]\n]*)\]\(((?:https?:|mailto:)[^\s)]+)(?:\s+"[^"]*")?\)/, (m) => link(m[2], inline(m[1] || m[2]))],
  [/^<((?:https?:|mailto:)[^\s>]+)>/, (m) => link(m[1], [m[1]])],
  [/^https?:\/\/[^\s<>()]*[^\s<>().,;:!?'"]/, (m) => link(m[0], [m[0]])],
  [/^\\([\\`*_{}[\]()#+\-.!|~>])/, (m) => m[1]],
];

function link(address, children) {
  const element = make("a", "", ...children);
  element.href = address;
  element.target = "_blank";
  element.rel = "noopener noreferrer nofollow";
  return element;
}

function inline(text) {
  const out = [];
  let plain = "";
  let at = 0;
  while (at < text.length) {
    const rest = text.slice(at);
    const wordBefore = at > 0 && /\w/.test(text[at - 1]);
    let found = null;
    if (/[`*_~[!<h\\]/.test(rest[0])) {
      for (const [pattern, build] of INLINE) {
        // An underscore or an address inside a word is part of the word.
        if (wordBefore && (rest[0] === "_" || rest[0] === "h")) break;
        const match = pattern.exec(rest);
        if (match) {
          found = [match[0].length, build(match)];
          break;
        }
      }
    }
    if (found) {
      if (plain) out.push(plain);
      plain = "";
      out.push(found[1]);
      at += found[0];
    } else {
      plain += rest[0];
      at += 1;
    }
  }
  if (plain) out.push(plain);
  return out;
}

export function codeBlock(language, text) {
  const copy = make("button", "quiet", "Copy");
  copy.type = "button";
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  return make("div", "code", make("header", "", make("span", "", language || "text"), copy), make("pre", "", make("code", "", text)));
}

const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;

function list(lines, start) {
  const first = ITEM.exec(lines[start]);
  const indent = first[1].length;
  const ordered = /\d/.test(first[2]);
  const element = make(ordered ? "ol" : "ul", "");
  if (ordered) element.start = parseInt(first[2], 10);
  let at = start;
  while (at < lines.length) {
    const item = ITEM.exec(lines[at]);
    if (!item || item[1].length < indent || /\d/.test(item[2]) !== ordered) break;
    const inner = [item[3]];
    at += 1;
    while (at < lines.length) {
      const next = ITEM.exec(lines[at]);
      const deeper = next ? next[1].length > indent : /^\s{2,}\S/.test(lines[at]);
      const blankInside = !lines[at].trim() && /^\s{2,}\S/.test(lines[at + 1] ?? "");
      if (!deeper && !blankInside) break;
      inner.push(lines[at].replace(new RegExp(`^\\s{0,${indent + item[2].length + 1}}`), ""));
      at += 1;
    }
    const entry = make("li", "", ...inner.length === 1 ? inline(inner[0]) : blocks(inner, true));
    element.append(entry);
    if (!(lines[at] ?? "x").trim() && ITEM.test(lines[at + 1] ?? "")) at += 1;
  }
  return [element, at];
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim());

function table(lines, start) {
  const row = (line, tag) => make("tr", "", ...cells(line).map((cell) => make(tag, "", ...inline(cell))));
  const element = make("table", "", row(lines[start], "th"));
  let at = start + 2;
  while (at < lines.length && lines[at].includes("|")) element.append(row(lines[at++], "td"));
  return [make("div", "scroll", element), at];
}

function blocks(lines, tight = false) {
  const out = [];
  let at = 0;
  let paragraph = [];
  const flush = () => {
    if (!paragraph.length) return;
    const parts = paragraph.flatMap((line, i) => (i ? [make("br"), ...inline(line)] : inline(line)));
    out.push(...(tight && !out.length ? parts : [make("p", "", ...parts)]));
    paragraph = [];
  };
  while (at < lines.length) {
    const line = lines[at];
    const fence = /^\s{0,3}(```+|~~~+)\s*([\w+#.-]*)/.exec(line);
    const heading = /^(#{1,6})\s+(.*?)\s*#*$/.exec(line);
    if (fence) {
      flush();
      const code = [];
      at += 1;
      while (at < lines.length && !lines[at].trim().startsWith(fence[1])) code.push(lines[at++]);
      out.push(codeBlock(fence[2], code.join("\n")));
      at += 1;
    } else if (heading) {
      flush();
      out.push(make(`h${Math.min(heading[1].length + 2, 6)}`, "", ...inline(heading[2])));
      at += 1;
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      flush();
      out.push(make("hr"));
      at += 1;
    } else if (/^\s*>/.test(line)) {
      flush();
      const quoted = [];
      while (at < lines.length && /^\s*>/.test(lines[at])) quoted.push(lines[at++].replace(/^\s*> ?/, ""));
      out.push(make("blockquote", "", ...blocks(quoted)));
    } else if (ITEM.test(line)) {
      flush();
      const [element, next] = list(lines, at);
      out.push(element);
      at = next;
    } else if (line.includes("|") && /^\s*\|?\s*:?-{2,}:?\s*(\|\s*:?-{2,}:?\s*)*\|?\s*$/.test(lines[at + 1] ?? "")) {
      flush();
      const [element, next] = table(lines, at);
      out.push(element);
      at = next;
    } else {
      if (line.trim()) paragraph.push(line.trim());
      else flush();
      at += 1;
    }
  }
  flush();
  return out;
}

export function renderMarkdown(element, text) {
  element.replaceChildren(...blocks(text.split("\n")));
}
