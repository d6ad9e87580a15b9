// Drives the page in Chromium: node drive.mjs ADDRESS INPUT OUTPUT SHOTS. The answers to the questions of INPUT go to
// OUTPUT, and screenshots of every tab, language, theme and width to the folder SHOTS.

import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const [address, input, output, shots] = process.argv.slice(2);
const { chromium } = createRequire(join(shots, "package.json"))("playwright-core");
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
const place = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find((path) => path && existsSync(path));
if (!place) throw new Error("there is no chromium: install it, or set CHROMIUM to its path");
const browser = await chromium.launch({ executablePath: place, headless: true, args: FLAGS });
const found = { answers: [], seen: [], problems: [], foreign: null };
const questions = JSON.parse(readFileSync(input, "utf8"));

async function open({ theme = "light", width = 1280, language = "en" } = {}) {
  const context = await browser.newContext({
    viewport: { width, height: width < 600 ? 844 : 860 }, colorScheme: theme, locale: language === "zh" ? "zh-CN" : "en-US",
    deviceScaleFactor: width < 600 ? 2 : 1, hasTouch: width < 600,
  });
  const page = await context.newPage();
  const problem = (text) => found.problems.push(text);
  page.on("console", (message) => message.type() === "error" && problem(message.text()));
  page.on("pageerror", (error) => problem(String(error)));
  page.on("request", (request) => new URL(request.url()).origin !== new URL(address).origin && !/^(blob|data):/.test(request.url()) && problem(`request to ${request.url()}`));
  await page.goto(address);
  await page.waitForSelector("[role=tab]");
  return { context, page };
}

async function answered(page, tab) {
  const done = (tab) => document.querySelector(`#${tab}-result`).querySelector(".rows, .reading, .attention, .error, .answer");
  await page.waitForFunction(done, tab, { timeout: 240000 });
  await page.waitForTimeout(200);
}

/** The answers of the page's own worker, with the time of each question when asked again. */
async function answers() {
  const { context, page } = await open();
  found.answers = await page.evaluate(async (questions) => {
    const { models } = await (await fetch("models.json")).json();
    const code = `import ${JSON.stringify(new URL("scripts/worker.js", location.href).href)};`;
    const worker = new Worker(URL.createObjectURL(new Blob([code], { type: "text/javascript" })), { type: "module" });
    const waiting = new Map();
    worker.onmessage = ({ data }) => data.id !== undefined && waiting.get(data.id)(data);
    worker.postMessage({ models });
    const ask = (id, question) => new Promise((resolve) => (waiting.set(id, resolve), worker.postMessage({ id, ...question })));
    const all = [];
    for (const question of questions) {
      const first = await ask(all.length, question);
      const times = [];
      for (let i = 0; i < 2 && first.found; i++) times.push((await ask(all.length, question)).took);
      const found = first.found && { ...first.found, maps: first.found.maps?.map((map) => [...map]) };
      all.push({ ...first, found, took: Math.min(...times) });
    }
    return all;
  }, questions);
  found.foreign = await page.evaluate(async () => {
    const says = [];
    document.addEventListener("securitypolicyviolation", (event) => says.push(event.violatedDirective));
    const other = await fetch("http://127.0.0.1:9/").then(() => "allowed", () => "refused");
    const code = `fetch("http://127.0.0.1:9/").then(() => postMessage("allowed"), () => postMessage("refused"));
      self.addEventListener("securitypolicyviolation", (event) => postMessage(event.violatedDirective));`;
    const worker = new Worker(URL.createObjectURL(new Blob([code], { type: "text/javascript" })), { type: "module" });
    const fromWorker = [];
    worker.onmessage = ({ data }) => fromWorker.push(data);
    await new Promise((resolve) => setTimeout(resolve, 500));
    return { other, says, fromWorker };
  });
  found.problems = found.problems.filter((text) => !text.includes("127.0.0.1:9"));
  await context.close();
}

async function look(theme, width, language) {
  const { context, page } = await open({ theme, width, language });
  const name = (tab) => join(shots, `${tab}-${language}-${theme}-${width < 600 ? "phone" : "desktop"}.png`);
  const tabs = await page.$$eval("[role=tab]", (all) => all.map((tab) => tab.id.replace("tab-", "")));
  for (const tab of tabs) {
    await page.click(`#tab-${tab}`);
    await page.click(`#panel-${tab} button.main`);
    await answered(page, tab);
    await page.screenshot({ path: name(tab), fullPage: true });
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    const text = await page.innerText(`#${tab}-result`);
    found.seen.push({ tab, theme, width, language, wide, text, isError: Boolean(await page.$(`#${tab}-result .error`)) });
  }
  await context.close();
}

/** Without a mouse: tabs by arrow keys, the query by Ctrl + Enter, heads by arrow keys; an error; the language is kept. */
async function keyboard() {
  const { context, page } = await open();
  await page.focus("#tab-fill");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowLeft");
  const focused = await page.evaluate(() => document.activeElement.id);
  await page.focus("#fill-text");
  await page.keyboard.press("Control+A");
  await page.keyboard.type("There is no blank here.");
  await page.keyboard.press("Control+Enter");
  await answered(page, "fill");
  const error = await page.innerText("#fill-result");
  await page.screenshot({ path: join(shots, "error-en.png") });
  await page.click("[data-language=zh]");
  const translated = await page.innerText("#fill-result");
  await page.reload();
  await page.waitForSelector("[role=tab]");
  const language = await page.getAttribute("html", "lang");
  await page.click("#tab-attention");
  await page.click("#panel-attention button.main");
  await answered(page, "attention");
  await page.focus(".heads [aria-checked=true]");
  await page.keyboard.press("ArrowRight");
  const head = await page.getAttribute(".heads [aria-checked=true]", "aria-label");
  await page.screenshot({ path: join(shots, "focus-zh.png"), fullPage: true });
  const unnamed = await page.$$eval("button, select, textarea, input", (all) =>
    all.filter((one) => !one.labels?.length && !one.textContent.trim() && !one.getAttribute("aria-label")).map((one) => one.outerHTML));
  found.keyboard = { focused, error, translated, language, head, unnamed };
  await context.close();
}

await answers();
await keyboard();
for (const theme of ["light", "dark"]) for (const width of [1280, 390]) for (const language of ["en", "zh"]) await look(theme, width, language);
await browser.close();
writeFileSync(output, JSON.stringify(found));
