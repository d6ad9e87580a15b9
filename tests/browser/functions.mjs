// Calls functions of the page's scripts: node functions.mjs SCRIPTS < {"calls": [[file, name, arguments], …]}
// A tokenizer is given as {"tokenizer": content of tokenizer.json}; "options" change that of its normaliser.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [scripts, input, output] = process.argv.slice(2);
const open = (file) => import(pathToFileURL(join(scripts, file)).href);
const FILES = ["tokenizer.js", "reading.js", "words.js", "decode.js", "readable.js"];
const [{ Tokenizer }, reading, words, decode, readable] = await Promise.all(FILES.map(open));
const given = JSON.parse(readFileSync(input, "utf8"));
const tokenizers = given.tokenizers.map((file) => new Tokenizer(file));
const calls = {
  encode: (number, text) => tokenizers[number].encode(text),
  words: (text) => words.splitWords(text),
  strange: (text, known) => readable.isStrange(text, known),
  /** The sequences of texts, and the answer of a task from recorded logits. */
  decode: ({ tokenizer: number, model, task, texts, logits }) => {
    const tokenizer = tokenizers[number];
    const spans = task === "tag" ? words.splitWords(texts[0]) : [];
    const whole = task === "tag" ? reading.encodeWords(tokenizer, model, texts[0], spans) : reading.encodeTexts(tokenizer, model, texts, task === "answer" ? "second" : "longer");
    const read = model.window.long === "cut" ? reading.cutTo(whole, model.window.length) : whole;
    const sequences = reading.sequencesOf(model, read);
    const ids = sequences.map((sequence) => sequence.ids);
    if (task === "classify") return { ids, answer: decode.ranked(decode.classify(logits, model), model) };
    if (task === "answer") {
      const views = sequences.map((sequence, i) => ({ ...sequence, starts: logits[i].map((row) => row[0]), ends: logits[i].map((row) => row[1]) }));
      return { ids, answer: decode.answers(views, read.offsets, model) };
    }
    const [from, to] = read.inside, first = reading.firstTokens(spans, read.offsets.slice(from, to), from);
    const rows = first.map((token) => {
      const i = sequences.findIndex(({ own, ownEnd }) => token >= own && token < ownEnd);
      return i < 0 ? null : logits[i][token - sequences[i].shift];
    });
    return { ids, answer: decode.tagged(rows, spans, model) };
  },
};
writeFileSync(output, JSON.stringify(given.calls.map(([name, ...values]) => calls[name](...values))));
