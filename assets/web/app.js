// The frame: tabs, theme, key, and the one way to talk to the server.

import { startChat } from "/web/chat.js";
import { refresh } from "/web/monitor.js";

const $ = (id) => document.getElementById(id);

export function make(tag, className = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

const kept = (store, key) => {
  try {
    return store.getItem(key);
  } catch {
    return null;
  }
};

const keep = (store, key, value) => {
  try {
    store.setItem(key, value);
  } catch {
    // A browser that forbids it forgets with the page.
  }
};

let asking = null;

/// Asks for a key once, however many requests want one.
function askForKey() {
  asking ??= new Promise((resolve) => {
    $("key-dialog").addEventListener("close", () => {
      keep(sessionStorage, "strata.key", $("key").value);
      asking = null;
      resolve();
    }, { once: true });
    $("key-dialog").showModal();
  });
  return asking;
}

export async function api(path, options = {}) {
  const key = kept(sessionStorage, "strata.key");
  const headers = { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
  const response = await fetch(path, { ...options, headers });
  if (response.status === 401) {
    await askForKey();
    return api(path, options);
  }
  if (!response.ok) {
    const body = await response.json().catch(() => null);
    throw new Error(body?.error?.message ?? `the server answered ${response.status}`);
  }
  return response;
}

let tab = "chat";

function select(name) {
  tab = name;
  for (const button of document.querySelectorAll("[data-tab]")) {
    const chosen = button.dataset.tab === name;
    button.setAttribute("aria-selected", String(chosen));
    $(button.dataset.tab).hidden = !chosen;
  }
  history.replaceState(null, "", `#${name}`);
  look();
  if (name === "chat") $("input").focus();
}

async function look() {
  try {
    await refresh(tab);
  } catch (error) {
    $("model").textContent = `not reachable: ${error.message}`;
  }
}

function theme(value) {
  if (value) document.documentElement.dataset.theme = value;
}

theme(kept(localStorage, "strata.theme"));
$("theme").addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  theme(next);
  keep(localStorage, "strata.theme", next);
});
$("menu").addEventListener("click", () => {
  const shown = $("side").classList.toggle("shown");
  $("menu").setAttribute("aria-expanded", String(shown));
});
for (const button of document.querySelectorAll("[data-tab]")) {
  button.addEventListener("click", () => select(button.dataset.tab));
}
startChat();
select(["chat", "monitor", "about"].includes(location.hash.slice(1)) ? location.hash.slice(1) : "chat");
setInterval(() => {
  if (!document.hidden && tab !== "chat") look();
}, 1000);
