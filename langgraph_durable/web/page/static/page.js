// What is shown stays fresh, and decisions need no reload. Without this script the page works
// by its forms and links. Nothing is built; nothing comes from elsewhere.
"use strict";

const part = document.getElementById("part");
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

// --- times ------------------------------------------------------------------------------

const relative = new Intl.RelativeTimeFormat(document.documentElement.lang, { numeric: "auto" });
const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

function tellTimes() {
  for (const time of all("time")) {
    if (!time.title) time.title = time.textContent;
    const seconds = (new Date(time.dateTime) - Date.now()) / 1000;
    const [unit, length] = UNITS.find(([, l]) => Math.abs(seconds) >= l) || UNITS[3];
    time.textContent = relative.format(Math.round(seconds / length), unit);
  }
}

// --- getting what has changed -----------------------------------------------------------

async function ask(address, options = {}) {
  const answer = await fetch(address, { ...options, headers: { "X-Part": "1" } });
  if (answer.status === 401) location.assign("/login");
  const html = await answer.text();
  const kind = answer.headers.get("content-type") || "";
  return { ok: answer.ok, html: kind.startsWith("text/html") ? html : null, said: html };
}

const parse = (html) => new DOMParser().parseFromString(html, "text/html").body;

async function refresh() {
  const answer = await ask(location.href);
  if (!answer.html) return;
  const fresh = parse(answer.html);
  const cards = document.querySelector("[data-merge]");
  if (!cards) {
    const kept = document.activeElement && document.activeElement.closest("[data-keep]");
    if (!kept) part.replaceChildren(...fresh.childNodes);
  } else {
    await merge(cards, fresh.querySelector("[data-merge]"));
    for (const section of all("[data-fresh]")) {
      const other = fresh.querySelector(`[data-fresh="${section.dataset.fresh}"]`);
      if (other && other.innerHTML !== section.innerHTML) section.replaceChildren(...other.childNodes);
    }
    const nothing = document.querySelector(".nothing");
    if (nothing) nothing.hidden = cards.children.length > 0;
  }
  tellTimes();
}

// A card that somebody reads or types into is never replaced while its question is open.
async function merge(cards, fresh) {
  const open = new Set();
  for (const card of all(".card", fresh)) {
    open.add(card.id);
    if (!document.getElementById(card.id)) cards.append(card);
  }
  for (const card of all(".card.open", cards)) {
    if (!open.has(card.id)) {
      const answer = await ask(`/questions/${card.dataset.question}`);
      if (answer.html) replace(card, parse(answer.html).querySelector(".card"));
    }
  }
}

function replace(card, other) {
  const wasSelected = card.classList.contains("selected");
  card.replaceWith(other);
  if (wasSelected) select(other);
  tellTimes();
}

const address = document.body.dataset.live;
if (address) {
  const light = document.getElementById("live");
  const stream = new EventSource(address);
  const show = (on) => {
    light.className = `live ${on ? "on" : "off"}`;
    light.textContent = on ? light.dataset.on : light.dataset.off;
  };
  let missed = false;
  stream.addEventListener("hello", () => { show(true); if (missed) refresh(); missed = false; });
  stream.addEventListener("changed", refresh);
  stream.addEventListener("error", () => { show(false); missed = true; });
}

// --- deciding ---------------------------------------------------------------------------

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.dataset.sure && form.dataset.asked !== "yes") {
    event.preventDefault();
    form.dataset.asked = "yes";
    form.querySelector("button").textContent = form.dataset.sure;
    return;
  }
  if (!form.matches("[data-decide]")) return;
  event.preventDefault();
  const card = form.closest(".card");
  const body = new URLSearchParams(new FormData(form, event.submitter));
  const choice = form.querySelector("[name=choice]");
  if (choice && !body.has("choice")) body.set("choice", choice.value);
  const buttons = all("button", card);
  buttons.forEach((button) => { button.disabled = true; });
  let answer;
  try {
    answer = await ask(form.action, { method: "POST", body });
  } catch {
    answer = { ok: false, html: null, said: document.getElementById("live").dataset.off };
  }
  if (answer.html) {
    replace(card, parse(answer.html).querySelector(".card"));
    if (answer.ok) step(1, true);
    return;
  }
  buttons.forEach((button) => { button.disabled = false; });
  const line = card.querySelector(".problem") || document.createElement("p");
  line.className = "problem";
  line.textContent = answer.said;
  card.append(line);
});

// --- the keyboard -----------------------------------------------------------------------

function select(card) {
  all(".card.selected").forEach((other) => other.classList.remove("selected"));
  if (!card) return;
  card.classList.add("selected");
  card.focus({ preventScroll: true });
  card.scrollIntoView({ block: "nearest" });
}

function step(by, onlyOpen = false) {
  const cards = all(onlyOpen ? ".card.open, .card.selected" : ".card");
  const here = cards.findIndex((card) => card.classList.contains("selected"));
  const next = cards[here < 0 ? (by > 0 ? 0 : cards.length - 1) : here + by];
  if (next && !(onlyOpen && here < 0)) select(next);
}

document.addEventListener("focusin", (event) => {
  const card = event.target.closest(".card");
  if (card && !card.classList.contains("selected")) {
    all(".card.selected").forEach((other) => other.classList.remove("selected"));
    card.classList.add("selected");
  }
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const typing = event.target.matches("input, textarea, select");
  const card = document.querySelector(".card.selected");
  if (event.key === "Escape" && card) {
    all("details[open]", card).forEach((details) => { details.open = false; });
    select(card);
    return;
  }
  if (typing || event.repeat) return;
  if (event.key === "j" || event.key === "k") {
    step(event.key === "j" ? 1 : -1);
  } else if (card && ["a", "r", "e", "n"].includes(event.key)) {
    const target = card.querySelector(`[data-key="${event.key}"]`);
    if (!target) return;
    target.click();
    const field = target.parentElement.matches("details[open]") && target.parentElement.querySelector("textarea");
    if (field) field.focus();
  } else {
    return;
  }
  event.preventDefault();
});

tellTimes();
setInterval(tellTimes, 15000);
