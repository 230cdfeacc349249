// Monitor and About: what /v1/status tells, drawn once a second while it is looked at.

import { api, make } from "/web/app.js";
import { setEye } from "/web/pictures.js";

const $ = (id) => document.getElementById(id);
const HISTORY = 120;
const history = [];
let last = null;

export const bytes = (n) => {
  if (n === null || n === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) {
    n /= 1024;
    unit += 1;
  }
  return `${n >= 100 || unit === 0 ? n.toFixed(0) : n.toFixed(1)} ${units[unit]}`;
};

const speed = (n) => (n ? `${n.toFixed(1)} tok/s` : "–");

function time(seconds) {
  const h = Math.floor(seconds / 3600);
  const m = Math.floor((seconds % 3600) / 60);
  return h ? `${h} h ${m} min` : m ? `${m} min` : `${Math.floor(seconds)} s`;
}

function tile(value, name, kind = "") {
  return make("div", `tile ${kind}`, make("b", "", value), make("span", "", name));
}

function rows(table, heads, lines) {
  const head = make("tr", "", ...heads.map((text) => make("th", "", text)));
  const body = lines.map((cells) => make("tr", "", ...cells.map((cell) => make("td", "", String(cell ?? "–")))));
  table.replaceChildren(head, ...body);
}

function pairs(table, object) {
  const lines = Object.entries(object).map(([key, value]) => {
    const text = value === null ? "–" : Array.isArray(value) ? value.join(", ") || "–" : String(value);
    return make("tr", "", make("th", "", key.replaceAll("_", " ")), make("td", "", text));
  });
  table.replaceChildren(...lines);
}

/// Tokens a second since the last look.
function rates(status) {
  const now = performance.now();
  // Totals count whole requests, so what runs is added from its slot.
  const decoded = status.totals.generated_tokens + status.slots.reduce((sum, slot) => sum + slot.generated_tokens, 0);
  const rate = last && decoded >= last.decoded ? ((decoded - last.decoded) * 1000) / (now - last.now) : 0;
  last = { now, decoded };
  history.push(rate);
  if (history.length > HISTORY) history.shift();
  return rate;
}

function graph() {
  const canvas = $("graph");
  const scale = window.devicePixelRatio || 1;
  canvas.width = canvas.clientWidth * scale;
  canvas.height = canvas.clientHeight * scale;
  const draw = canvas.getContext("2d");
  draw.scale(scale, scale);
  const style = getComputedStyle(document.documentElement);
  const probe = make("i");
  document.body.append(probe);
  const colour = (name) => {
    probe.style.color = style.getPropertyValue(name);
    return getComputedStyle(probe).color;
  };
  const [line, soft] = [colour("--accent"), colour("--soft")];
  probe.remove();
  const [w, h] = [canvas.clientWidth, canvas.clientHeight];
  const top = Math.max(1, ...history) * 1.15;
  draw.fillStyle = soft;
  draw.font = "12px system-ui";
  draw.fillText(`${top.toFixed(0)} tok/s`, 8, 16);
  draw.strokeStyle = line;
  draw.lineWidth = 2;
  draw.beginPath();
  history.forEach((value, i) => {
    const x = ((i + HISTORY - history.length) / (HISTORY - 1)) * w;
    const y = h - 6 - (value / top) * (h - 26);
    i ? draw.lineTo(x, y) : draw.moveTo(x, y);
  });
  draw.stroke();
}

function meter(name, used, total) {
  const bar = make("progress");
  bar.max = total || 1;
  bar.value = used || 0;
  return make("div", "meter", make("span", "", name), bar, make("span", "", bytes(used)));
}

/// What a device could hold: its pool of the plan, or the host's RAM.
function deviceRoom(status, id, ram) {
  const pool = (status.engine?.plan?.pools ?? []).find((pool) => pool.name.split(" ")[0] === id);
  return pool?.capacity ?? ram;
}

function showMonitor(status) {
  const rate = rates(status);
  const busy = status.slots.filter((slot) => slot.is_processing).length;
  const good = status.state === "ready" && !status.stalled;
  const { totals } = status;
  const hit = totals.prompt_tokens ? `${((100 * totals.cached_tokens) / totals.prompt_tokens).toFixed(0)} %` : "–";
  $("tiles").replaceChildren(
    tile(status.stalled ? "stalled" : status.state, `${status.activity.what}, ${status.activity.seconds.toFixed(1)} s`, good ? "good" : "bad"),
    tile(rate.toFixed(1), "tokens a second now"),
    tile(`${busy} / ${status.slots.length}`, "slots at work"),
    tile(String(status.waiting), "requests waiting"),
    tile(String(totals.done), "answered"),
    tile(hit, "of prompts from the cache"),
    tile(String(totals.failed + totals.cancelled), "failed or cancelled"),
    tile(time(status.uptime_seconds), status.restarts ? `up, ${status.restarts} restarts of the engine` : "up"),
  );
  graph();
  rows($("slots"), ["Slot", "State", "Holds", "Prompt", "Cached", "Answer", "Speed", "Checkpoints"], status.slots.map((slot) => [
    slot.id, slot.state, `${slot.held_tokens} / ${slot.n_ctx}`, slot.prompt_tokens, slot.cached_tokens, slot.generated_tokens,
    speed(slot.tokens_per_second), slot.checkpoints ? `${slot.checkpoints} (${bytes(slot.checkpoint_bytes)})` : "–",
  ]));
  const memory = status.engine?.memory ?? {};
  const total = (status.memory.resident_bytes ?? 0) + (status.memory.available_bytes ?? 0);
  const pools = (status.engine?.plan?.pools ?? []).map((pool) => meter(`${pool.name}, planned`, pool.used, pool.capacity));
  const devices = (status.engine?.devices ?? []).map((d) => meter(`${d.id}, in use`, d.arenas_bytes, deviceRoom(status, d.id, total)));
  $("memory").replaceChildren(
    ...pools, ...devices,
    meter("Weights", memory.weights_bytes, total), meter("State", memory.state_bytes, total),
    meter("Work", memory.work_bytes, total), meter("Scratch", memory.scratch_bytes, total),
    meter("Parked conversations", status.parked.bytes, status.parked.budget_bytes || total),
    meter("Whole process", status.memory.resident_bytes, total), meter("Still free", status.memory.available_bytes, total),
  );
  rows($("recent"), ["When", "Outcome", "Waited", "Prompt", "Cached", "Answer", "Speed", "Text"], status.recent.map((r) => [
    new Date(r.ended * 1000).toLocaleTimeString(), r.outcome.replaceAll("_", " "), `${r.waited_seconds.toFixed(2)} s`, r.prompt_tokens,
    r.cached_tokens, r.generated_tokens, speed(r.tokens_per_second), r.text ?? "not shown",
  ]));
}

function showAbout(status) {
  const { vision, ...model } = status.model;
  const pictures = vision
    ? `PNG, JPEG, WebP, GIF; each is ${vision.min_tokens} to ${vision.max_tokens} tokens, one for ${vision.side_pixels} x ${vision.side_pixels} pixels`
    : "not supported: text only";
  pairs($("about-model"), { ...model, pictures, devices: (status.engine?.devices ?? []).map((d) => `${d.id}: ${d.detail}`), version: status.version });
  pairs($("about-config"), status.configuration ?? {});
  const base = location.origin;
  $("about-use").textContent = [
    `curl ${base}/v1/chat/completions -H 'content-type: application/json' \\`,
    `  -d '{"messages": [{"role": "user", "content": "Hello"}]}'`,
    "",
    `OPENAI_BASE_URL=${base}/v1`,
    `ANTHROPIC_BASE_URL=${base}`,
  ].join("\n");
}

export async function refresh(tab) {
  const status = await (await api("/v1/status")).json();
  document.getElementById("model").textContent = status.model.id;
  setEye(status.model.vision);
  if (tab === "monitor") showMonitor(status);
  if (tab === "about") showAbout(status);
}
