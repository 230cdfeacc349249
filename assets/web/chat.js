// The conversation: kept in this browser, sent whole with every question.

import { renderMarkdown } from "/web/markdown.js";
import { api, make } from "/web/app.js";
import { isAnyAttached, notice, startPictures, takeAttached, thumbs } from "/web/pictures.js";

const $ = (id) => document.getElementById(id);
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "max_tokens", "seed"];
const STORE = "strata.conversations";
const SETTINGS = "strata.settings";

let conversations = [];
let current = null;
let running = null;

const read = (key, otherwise) => {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
};

/// Keeps the conversations. Where there is no room for all pictures, those of the oldest conversations go first.
function save() {
  const kept = conversations.filter((c) => c.messages.length).slice(0, 100);
  const without = (conversation) => ({
    ...conversation,
    messages: conversation.messages.map((m) => (m.pictures ? { ...m, pictures: m.pictures.map(({ name }) => ({ name })) } : m)),
  });
  for (let full = kept.length; full >= 0; full -= 1) {
    try {
      localStorage.setItem(STORE, JSON.stringify(kept.map((c, i) => (i < full ? c : without(c)))));
      return;
    } catch {
      // A full or forbidden store only means that what does not fit ends with the page.
    }
  }
}

function begin() {
  current = { id: crypto.randomUUID?.() ?? String(Date.now()), title: "New conversation", messages: [] };
  conversations.unshift(current);
  show();
}

function showList() {
  const entries = conversations.filter((c) => c.messages.length || c === current).map((conversation) => {
    const open = make("button", "open", conversation.title);
    open.addEventListener("click", () => {
      stop();
      current = conversation;
      $("side").classList.remove("shown");
      show();
    });
    const drop = make("button", "drop", "✕");
    drop.setAttribute("aria-label", `Delete ${conversation.title}`);
    drop.addEventListener("click", () => {
      if (conversation === current) stop();
      conversations = conversations.filter((other) => other !== conversation);
      save();
      if (conversation === current) {
        conversations.length ? ([current] = conversations) : begin();
      }
      show();
    });
    return make("li", conversation === current ? "current" : "", open, drop);
  });
  $("list").replaceChildren(...entries);
}

function show() {
  showList();
  const log = $("log");
  if (!current.messages.length) {
    log.replaceChildren(make("div", "empty", make("b", "", "What shall we talk about?"), "Everything stays on the machine that runs Strata."));
    return;
  }
  log.replaceChildren(...current.messages.map((message, index) => view(message, index)));
  scrollDown(true);
}

function numbers(message) {
  const n = message.numbers;
  if (!n) return "";
  const speed = n.predicted_per_second ? `${n.predicted_per_second.toFixed(1)} tok/s` : "";
  const cached = n.cache_n ? `${n.cache_n} cached` : "";
  return [`${n.predicted_n} tokens`, speed, cached].filter(Boolean).join(" · ");
}

function view(message, index) {
  const element = make("article", `message ${message.error ? "error" : message.role}`);
  const actions = make("div", "actions");
  const action = (name, run) => {
    const button = make("button", "", name);
    button.type = "button";
    button.addEventListener("click", run);
    actions.append(button);
  };
  const body = make("div", "body");
  if (message.role === "user") {
    if (message.pictures?.length) element.append(thumbs(message.pictures));
    body.textContent = message.content;
  } else {
    if (message.reasoning) element.append(thinking(message));
    renderMarkdown(body, message.content);
  }
  element.append(body);
  if (message.error) element.append(make("div", "failure", message.error));
  if (message.role === "user") {
    action("Edit", () => edit(element, index));
    if (index === current.messages.length - 1 && !running) action("Answer", answer);
  } else {
    action("Regenerate", () => regenerate(index));
  }
  if (message.content) action("Copy", () => navigator.clipboard.writeText(message.content));
  actions.append(make("span", "numbers", numbers(message)));
  element.append(actions);
  return element;
}

function thinking(message, open = false) {
  const details = make("details", "thinking", make("summary", "", open ? "Thinking…" : "Thoughts"), make("div", "", message.reasoning));
  details.open = open;
  return details;
}

function edit(element, index) {
  const area = make("textarea", "edit");
  const pictures = [...(current.messages[index].pictures ?? [])];
  area.value = current.messages[index].content;
  area.setAttribute("aria-label", "Edit the message; Ctrl+Enter sends it");
  const done = make("button", "primary", "Send");
  const cancel = make("button", "", "Cancel");
  const send = () => {
    const text = area.value.trim();
    if (!text && !pictures.length) return;
    stop();
    current.messages.length = index;
    ask(text, pictures);
  };
  done.addEventListener("click", send);
  cancel.addEventListener("click", show);
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send();
    if (event.key === "Escape") show();
  });
  const shown = make("div");
  const draw = () => shown.replaceChildren(thumbs(pictures, (at) => {
    pictures.splice(at, 1);
    draw();
  }));
  draw();
  element.replaceChildren(shown, area, make("div", "actions", done, cancel));
  area.focus();
}

function regenerate(index) {
  stop();
  current.messages.length = index;
  answer();
}

/// A message as the server takes it: pictures before the words about them.
function sent({ role, content, reasoning, pictures }) {
  if (reasoning) return { role, content, reasoning_content: reasoning };
  const seen = (pictures ?? []).filter((picture) => picture.url);
  if (!seen.length) return { role, content };
  const parts = seen.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return { role, content: content ? [...parts, { type: "text", text: content }] : parts };
}

function request() {
  const system = $("system").value.trim();
  const said = current.messages.filter((m) => !m.error).map(sent);
  const body = {
    messages: system ? [{ role: "system", content: system }, ...said] : said,
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
    enable_thinking: $("think").checked,
  };
  for (const id of NUMBERS) {
    if ($(id).value !== "") body[id] = Number($(id).value);
  }
  return body;
}

export async function ask(text, pictures = []) {
  current.messages.push(pictures.length ? { role: "user", content: text, pictures } : { role: "user", content: text });
  if (current.messages.length === 1) current.title = text.slice(0, 60) || "A picture";
  await answer();
}

async function answer() {
  const conversation = current;
  const message = { role: "assistant", content: "", reasoning: "" };
  const abort = new AbortController();
  running = { abort, conversation };
  setRunning(true);
  show();
  const live = liveView(message);
  try {
    const response = await api("/v1/chat/completions", { method: "POST", body: JSON.stringify(request()), signal: abort.signal });
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      take(message, event);
      live.update();
    }
  } catch (error) {
    if (error.name !== "AbortError") message.error = error.message;
  }
  if (message.content || message.reasoning || message.error) conversation.messages.push(message);
  save();
  if (running?.abort === abort) {
    running = null;
    setRunning(false);
  }
  // A newer answer draws itself.
  if (conversation === current && !running) show();
}

function take(message, event) {
  const delta = event.choices?.[0]?.delta;
  if (delta?.reasoning_content) message.reasoning += delta.reasoning_content;
  if (delta?.content) message.content += delta.content;
  if (event.prompt_progress) message.progress = event.prompt_progress;
  if (event.timings) message.numbers = event.timings;
}

/// The answer while it grows. It is drawn once a frame at most, whatever the speed of the model.
function liveView(message) {
  const body = make("div", "body waiting");
  const element = make("article", "message assistant", body);
  $("log").append(element);
  scrollDown(true);
  let details = null;
  let due = false;
  const draw = () => {
    due = false;
    const near = isNearEnd();
    if (message.reasoning) {
      if (!details) {
        details = thinking(message, true);
        element.prepend(details);
      }
      details.lastChild.textContent = message.reasoning;
      if (message.content && details.open && !details.dataset.closed) {
        details.open = false;
        details.dataset.closed = "yes";
        details.firstChild.textContent = "Thoughts";
      }
    }
    if (message.content) renderMarkdown(body, message.content);
    else if (message.progress && !message.reasoning) {
      const { processed, total } = message.progress;
      body.textContent = processed < total ? `Reading ${processed} of ${total} tokens ` : "";
    } else body.textContent = "";
    if (near) scrollDown(true);
  };
  return {
    update() {
      if (!due) requestAnimationFrame(draw);
      due = true;
    },
  };
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const frames = held.split("\n\n");
    held = frames.pop();
    for (const frame of frames) {
      const data = frame.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

export function stop() {
  running?.abort.abort();
}

function setRunning(is) {
  const send = $("send");
  send.textContent = is ? "Stop" : "Send";
  send.classList.toggle("stop", is);
}

const isNearEnd = () => $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 80;

function scrollDown(force) {
  if (force || isNearEnd()) $("log").scrollTop = $("log").scrollHeight;
}

function fit() {
  const input = $("input");
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
}

function submit() {
  const text = $("input").value.trim();
  if (running) return stop();
  if (!text && !isAnyAttached()) return;
  $("input").value = "";
  notice("");
  fit();
  ask(text, takeAttached());
}

function keepSettings() {
  const values = Object.fromEntries([...NUMBERS, "system"].map((id) => [id, $(id).value]));
  try {
    localStorage.setItem(SETTINGS, JSON.stringify({ ...values, think: $("think").checked }));
  } catch {
    // Settings then last as long as the page.
  }
}

export function startChat() {
  conversations = read(STORE, []).filter((c) => Array.isArray(c?.messages));
  const kept = read(SETTINGS, {});
  for (const id of [...NUMBERS, "system"]) $(id).value = kept[id] ?? "";
  $("think").checked = Boolean(kept.think);
  begin();
  $("form").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  $("input").addEventListener("input", () => {
    notice("");
    fit();
  });
  startPictures(fit);
  $("input").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !running) {
      event.preventDefault();
      submit();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") stop();
  });
  $("new").addEventListener("click", () => {
    stop();
    begin();
    $("side").classList.remove("shown");
    $("input").focus();
  });
  $("settings-open").addEventListener("click", () => {
    const shown = $("settings").toggleAttribute("hidden");
    $("settings-open").setAttribute("aria-expanded", String(!shown));
  });
  $("reset").addEventListener("click", () => {
    for (const id of NUMBERS) $(id).value = "";
    keepSettings();
  });
  for (const id of [...NUMBERS, "system", "think"]) $(id).addEventListener("change", keepSettings);
}
