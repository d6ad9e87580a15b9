// Runs the page's worker in node, as a browser does: node worker.mjs PAGE INPUT OUTPUT, with questions as JSON.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [page, input, output] = process.argv.slice(2);
const answers = [], listeners = [];
const questions = JSON.parse(readFileSync(input, "utf8"));
globalThis.addEventListener = (_, listener) => listeners.push(listener);
globalThis.fetch = async (url) => new Response(readFileSync(new URL(url)));
globalThis.postMessage = (message) => {
  if (message.id === undefined) return;
  answers.push(message);
  if (answers.length === questions.length) {
    const plain = (_, value) => (ArrayBuffer.isView(value) ? [...value] : value);
    writeFileSync(output, JSON.stringify(answers, plain));
    process.exit(0);
  }
};
await import(pathToFileURL(join(page, "scripts", "worker.js")).href);
const send = (data) => listeners.forEach((listener) => listener({ data }));
send(JSON.parse(readFileSync(join(page, "models.json"), "utf8")));
questions.forEach((question, id) => send({ id, ...question }));
