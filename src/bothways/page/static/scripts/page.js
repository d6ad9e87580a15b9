/* The page: tabs, fields, languages. Models run in worker.js. */

import { make } from "./elements.js";
import { RESULTS } from "./results.js";
import { EXAMPLES, TEXTS, put } from "./texts.js";

/** The fields of each tab: [name, what texts.js calls it, rows; 1 for a single line]. */
const FIELDS = {
  fill: [["text", "text", 4]],
  attention: [["text", "text", 2]],
  classify: [["text", "text", 5], ["second", "second", 3]],
  tag: [["text", "text", 6]],
  answer: [["question", "question", 1], ["text", "context", 9]],
  similar: [["text", "query", 1], ["lines", "lines", 8]],
};
const HINTS = { fill: { text: "fillHint" }, similar: { lines: "linesHint" } };
const KEPT = "bothways-language";

const state = { language: firstLanguage(), tab: "", models: [], panels: new Map(), asked: 0, waiting: new Map() };
const says = () => TEXTS[state.language];
const byId = (id) => document.getElementById(id);

// ---------------------------------------------------------------------- models

/** A worker of a blob obeys this page's Content-Security-Policy; one of a file would have its own. */
function startWorker() {
  const place = new URL("worker.js", import.meta.url).href;
  const worker = new Worker(URL.createObjectURL(new Blob([`import ${JSON.stringify(place)};`], { type: "text/javascript" })), { type: "module" });
  worker.addEventListener("message", ({ data }) => {
    if (data.progress !== undefined) for (const { panel } of state.waiting.values()) showProgress(panel, data.progress);
    else finish(data);
  });
  worker.addEventListener("error", ({ message }) => {
    for (const id of state.waiting.keys()) finish({ id, error: { code: "failed", values: { says: message ?? "" } } });
  });
  worker.postMessage({ models: state.models });
  return worker;
}

function ask(panel) {
  const given = Object.fromEntries(FIELDS[panel.tab].map(([name]) => [name, panel.fields[name].value]));
  const id = ++state.asked;
  state.waiting.set(id, { panel, given, model: panel.model });
  panel.button.disabled = true;
  panel.shown = null;
  fillResult(panel, make("p", { class: "empty", role: "status" }, says().computing));
  state.worker ??= startWorker();
  state.worker.postMessage({ id, task: panel.tab, model: panel.model.name, given });
}

function finish({ id, found, error, took }) {
  const { panel, given, model } = state.waiting.get(id);
  state.waiting.delete(id);
  panel.button.disabled = false;
  panel.shown = { found, error, given, model };
  if (found) state.took = took;
  showResult(panel);
  showSpeed();
  if (!panel.root.hidden) panel.result.scrollIntoView({ block: "nearest" }); // on a phone it is below the form
}

// ---------------------------------------------------------------------- results

function fillResult(panel, ...children) {
  panel.result.replaceChildren(...children);
}

function showResult(panel) {
  if (!panel.shown) return fillResult(panel, make("p", { class: "empty" }, says().waiting));
  const { found, error, given, model } = panel.shown;
  if (error) return fillResult(panel, make("p", { class: "error", role: "alert" }, put(says().errors[error.code], error.values)));
  const notes = found.notes.map(([code, values]) => make("p", { class: "note" }, put(says().notes[code], values)));
  fillResult(panel, ...RESULTS[panel.tab](found, given, model, says()), ...notes);
}

function showProgress(panel, share) {
  if (!panel.result.querySelector(".progress")) {
    fillResult(panel, make("p", { class: "empty", role: "status" }, `${says().loading} …`), make("div", { class: "progress" }, make("span")));
  }
  panel.result.querySelector(".progress span").style.width = `${Math.max(3, 100 * share)}%`;
  if (share >= 1) fillResult(panel, make("p", { class: "empty", role: "status" }, says().computing));
}

function showSpeed() {
  byId("speed").textContent = state.took === undefined ? "" : put(says().speed, { ms: Math.round(state.took) });
}

// ---------------------------------------------------------------------- panels

/** Those of the page's language first; to compare sentences, those that were trained for it before those that fill blanks. */
function modelsOf(tab) {
  const place = (model) => 2 * Number(!model.languages.includes(state.language)) + Number(tab === "similar" && model.tabs.includes("fill"));
  return state.models.filter((model) => model.tabs.includes(tab)).sort((a, b) => place(a) - place(b));
}

function modelName(model) {
  const about = model.isIncluded && says().models[model.name];
  return about ? `${model.name} · ${about}` : model.name;
}

function makePanel(tab) {
  const old = state.panels.get(tab), models = modelsOf(tab);
  const panel = { tab, fields: {}, shown: old?.shown ?? null, model: old?.chosen ?? models[0], chosen: old?.chosen };
  const choice = make("select", { id: `${tab}-model`, onchange: () => choose(panel, models[choice.selectedIndex]) });
  for (const model of models) choice.append(make("option", { selected: model === panel.model }, modelName(model)));
  panel.labels = {};
  const fields = FIELDS[tab].map((field) => makeField(panel, field, old));
  panel.button = make("button", { type: "submit", class: "main" }, says().go[tab]);
  panel.button.disabled = [...state.waiting.values()].some((waiting) => waiting.panel === old);
  const actions = make("div", { class: "actions" }, panel.button);
  if (tab === "fill") actions.append(make("button", { type: "button", onclick: () => insertMask(panel.fields.text) }, says().blank));
  actions.append(make("span", { class: "hint keys" }, says().keys));
  panel.examples = make("div", { class: "examples" });
  panel.result = make("div", { class: "card result", "aria-live": "polite", id: `${tab}-result` });
  const form = make(
    "form", { class: "card", onsubmit: (event) => (event.preventDefault(), ask(panel)) },
    make("div", { class: "field" }, make("label", { for: choice.id }, says().model), choice), ...fields, actions, panel.examples,
  );
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !panel.button.disabled) ask(panel);
  });
  const isWide = tab === "attention";
  panel.root = make("div", { role: "tabpanel", id: `panel-${tab}`, "aria-labelledby": `tab-${tab}`, hidden: tab !== state.tab },
    make("div", { class: isWide ? "panel wide" : "panel" }, form, panel.result));
  for (const waiting of state.waiting.values()) if (waiting.panel === old) waiting.panel = panel;
  state.panels.set(tab, panel);
  showModel(panel, !old);
  showResult(panel);
  return panel.root;
}

function makeField(panel, [name, called, rows], old) {
  const id = `${panel.tab}-${name}`, hint = HINTS[panel.tab]?.[name];
  const attributes = { id, autocomplete: "off", dir: "auto", "aria-describedby": hint ? `${id}-hint` : null };
  const field = rows === 1 ? make("input", { type: "text", ...attributes }) : make("textarea", { rows, ...attributes });
  field.value = old?.fields[name].value ?? "";
  panel.fields[name] = field;
  const found = make("div", { class: "field" }, make("label", { for: id }, says()[called]), field);
  if (hint) found.append(make("p", { class: "hint", id: `${id}-hint` }, says()[hint]));
  panel.labels[name] = found;
  return found;
}

function choose(panel, model) {
  panel.model = panel.chosen = model;
  panel.shown = null;
  showModel(panel, true);
  showResult(panel);
}

/** The examples of the chosen model, and the fields that it reads. `isNew`: with the first example filled in. */
function showModel(panel, isNew) {
  const { model, tab } = panel;
  const language = model.languages.includes(state.language) ? state.language : model.languages[0];
  const examples = (model.isIncluded && EXAMPLES[model.name] && tab !== "attention" ? EXAMPLES[model.name][language] : EXAMPLES[tab][language]) ?? [];
  if (panel.labels.second) panel.labels.second.hidden = model.texts !== 2;
  panel.examples.hidden = !examples.length;
  panel.examples.replaceChildren(
    make("p", {}, says().examples),
    ...examples.map((example) => make("button", {
      type: "button", title: example.question ?? example.text, onclick: () => (fillFields(panel, example), !panel.button.disabled && ask(panel)),
    }, example.question ?? example.text)),
  );
  if (isNew && examples.length) fillFields(panel, examples[0]);
}

function fillFields(panel, example) {
  for (const [name, field] of Object.entries(panel.fields)) field.value = example[name] ?? "";
}

function insertMask(field) {
  field.setRangeText("[MASK]", field.selectionStart, field.selectionEnd, "end");
  field.focus();
}

// ---------------------------------------------------------------------- tabs and languages

function showTabs() {
  const known = Object.keys(FIELDS).filter((tab) => state.models.some((model) => model.tabs.includes(tab)));
  const wanted = location.hash.slice(1);
  state.tab = known.includes(state.tab) ? state.tab : known.includes(wanted) ? wanted : known[0];
  byId("tabs").replaceChildren(...known.map((tab) => make("button", {
    type: "button", role: "tab", id: `tab-${tab}`, "aria-controls": `panel-${tab}`, onclick: () => selectTab(tab),
    onkeydown: (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (move) selectTab(known[(known.indexOf(tab) + move + known.length) % known.length], true);
    },
  }, says().tab[tab])));
  byId("panels").replaceChildren(...known.map(makePanel));
  selectTab(state.tab);
}

function selectTab(tab, takesFocus = false) {
  state.tab = tab;
  for (const button of byId("tabs").children) {
    const isChosen = button.id === `tab-${tab}`;
    button.setAttribute("aria-selected", isChosen);
    button.tabIndex = isChosen ? 0 : -1;
    if (isChosen && takesFocus) button.focus();
  }
  for (const panel of state.panels.values()) panel.root.hidden = panel.tab !== tab;
  history.replaceState(null, "", `#${tab}`);
}

function firstLanguage() {
  try {
    const kept = localStorage.getItem(KEPT);
    if (kept in TEXTS) return kept;
  } catch {
    // no storage: the browser's language
  }
  return navigator.language.startsWith("zh") ? "zh" : "en";
}

function setLanguage(language) {
  state.language = language;
  try {
    localStorage.setItem(KEPT, language);
  } catch {
    // no storage: until the page is closed
  }
  showLanguage();
}

function showLanguage() {
  document.documentElement.lang = state.language === "zh" ? "zh-Hans" : "en";
  for (const element of document.querySelectorAll("[data-text]")) element.textContent = says()[element.dataset.text];
  for (const element of document.querySelectorAll("[data-label]")) element.setAttribute("aria-label", says()[element.dataset.label]);
  for (const button of document.querySelectorAll("[data-language]")) button.setAttribute("aria-pressed", button.dataset.language === state.language);
  if (state.models.length) showTabs();
  showSpeed();
}

async function start() {
  for (const button of document.querySelectorAll("[data-language]")) button.addEventListener("click", () => setLanguage(button.dataset.language));
  try {
    if (!("WebAssembly" in window && "DecompressionStream" in window)) throw "old";
    const response = await fetch(new URL("../models.json", import.meta.url));
    state.models = (await response.json()).models;
    if (!state.models.length) throw "noModels";
  } catch (error) {
    const code = error === "old" ? "old" : "noModels";
    byId("start").textContent = says().errors[code];
    byId("start").className = "error";
  }
  showLanguage();
}

start();
