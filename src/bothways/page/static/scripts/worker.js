/* Models and their answers, apart from the page so that it stays responsive. Nothing is read but the files beside it. */

import * as ort from "../runtime/ort.js";
import { answers, classify, cosine, ranked, tagged } from "./decode.js";
import { fill, filledText, masksOf } from "./fill.js";
import { isStrange } from "./readable.js";
import { PageError, cutTo, encodeTexts, encodeWords, firstTokens, sequencesOf } from "./reading.js";
import { Tokenizer } from "./tokenizer.js";
import { Weights } from "./weights.js";
import { splitWords } from "./words.js";

const MOST_SESSIONS = 2; // each holds its weights in fp32
const MOST_SEQUENCES = 8;
const MOST_SHOWN = 64; // tokens of an attention map
const root = new URL("../", import.meta.url);
const models = new Map(), files = new Map(), sessions = new Map();
let queue = Promise.resolve(), opening = 0; // milliseconds spent on loading

ort.env.wasm.numThreads = 1;

// ---------------------------------------------------------------------- files

/** A file beside the page, read once; progress is told while it arrives. */
function file(path, size = 0) {
  if (!files.has(path)) {
    files.set(path, download(path, size));
    files.get(path).catch(() => files.delete(path));
  }
  return files.get(path);
}

async function download(path, size) {
  const response = await fetch(new URL(path, root));
  if (!response.ok) throw new PageError("noFile", { file: path });
  const parts = [];
  let done = 0;
  for (const reader = response.body.getReader(); ; ) {
    const { value, done: isDone } = await reader.read();
    if (isDone) break;
    parts.push(value);
    done += value.length;
    if (size) postMessage({ progress: Math.min(done / size, 1) });
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/** A gzip file, whether or not the server has unpacked it. */
async function unpacked(path) {
  const packed = await file(path);
  if (packed[0] !== 0x1f || packed[1] !== 0x8b) return packed;
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

let runtime;
function prepareRuntime() {
  runtime ??= unpacked("runtime/ort.wasm.gz").then((binary) => {
    ort.env.wasm.wasmBinary = binary;
    ort.env.wasm.wasmPaths = { wasm: new URL("runtime/ort.wasm.gz", root).href }; // the only file it knows of
    files.delete("runtime/ort.wasm.gz");
  });
  return runtime;
}

async function tokenizerOf(model) {
  const { file: path } = model.tokenizer;
  if (!models.get(path)) models.set(path, new Tokenizer(JSON.parse(new TextDecoder().decode(await file(path)))));
  return models.get(path);
}

// ---------------------------------------------------------------------- sessions

async function weightsOf(name) {
  const model = models.get(name);
  const base = model.base ? await weightsOf(model.base) : null;
  return new Weights(await file(model.weights, model.weightsSize), base);
}

async function sessionOf(name, output) {
  const path = models.get(name).graphs[output].file;
  let session = sessions.get(path);
  if (session) sessions.delete(path);
  else {
    const start = performance.now();
    session = await openSession(name, path, models.get(name).graphs[output].tensors);
    opening += performance.now() - start;
  }
  sessions.set(path, session); // the last one used is the last to be closed
  for (const oldest of [...sessions.keys()].slice(0, -MOST_SESSIONS)) {
    await sessions.get(oldest).release();
    sessions.delete(oldest);
  }
  return session;
}

async function openSession(name, path, tensors) {
  await prepareRuntime();
  const [graph, weights] = await Promise.all([file(path), weightsOf(name)]);
  postMessage({ progress: 1 });
  const externalData = tensors.map((tensor) => ({ path: tensor, data: weights.bytes(tensor) }));
  return ort.InferenceSession.create(graph, { externalData, executionProviders: ["wasm"] });
}

/** The outputs of sequences {ids, segments}, padded to the longest: {name: {data, dims}}. */
async function run(name, output, sequences, wanted) {
  const session = await sessionOf(name, output);
  const length = Math.max(...sequences.map(({ ids }) => ids.length));
  const tensor = (rows) => {
    const data = new BigInt64Array(sequences.length * length);
    rows.forEach((row, i) => row.forEach((value, j) => (data[i * length + j] = BigInt(value))));
    return new ort.Tensor("int64", data, [sequences.length, length]);
  };
  const feeds = { input_ids: tensor(sequences.map(({ ids }) => ids)), attention_mask: tensor(sequences.map(({ ids }) => ids.map(() => 1))) };
  if (session.inputNames.includes("token_type_ids")) feeds.token_type_ids = tensor(sequences.map(({ segments }) => segments));
  return session.run(feeds, wanted);
}

/** The same in batches, one result for each sequence: `pick(data, row)` takes it from the output. */
async function runEach(name, output, sequences, wanted, pick) {
  const found = [];
  for (let i = 0; i < sequences.length; i += MOST_SEQUENCES) {
    const some = sequences.slice(i, i + MOST_SEQUENCES);
    const outputs = await run(name, output, some, [wanted]);
    some.forEach((_, row) => found.push(pick(outputs[wanted], row, i + row)));
  }
  return found;
}

/** Row `row` of an output of three dimensions: one array for each token that is asked for. */
function tokenRows({ data, dims }, row, places) {
  const [, length, width] = dims;
  return places.map((place) => data.slice((row * length + place) * width, (row * length + place + 1) * width));
}

const firstRow = ({ data, dims }, row) => [...data.slice(row * dims[1], (row + 1) * dims[1])];

// ---------------------------------------------------------------------- tasks

function requireText(...texts) {
  if (texts.some((text) => !text.trim())) throw new PageError("empty");
}

function requireShort(model, read) {
  if (read.ids.length > model.maxLength) throw new PageError("tooLong", { tokens: read.ids.length, limit: model.maxLength });
}

/** Notes on what was read: windows, unknown words, a script that the model does not read. */
function notesOf(model, sequences, ids, ...texts) {
  const notes = [];
  if (sequences.length > 1) notes.push(["windows", { windows: sequences.length }]);
  const unknown = ids.filter((id) => id === model.tokenizer.unk).length;
  if (texts.length && isStrange(texts.join(" "), model.scripts)) notes.push(["strange", {}]);
  else if (unknown > 0.2 * ids.length) notes.push(["unknown", { share: Math.round((100 * unknown) / ids.length) }]);
  return notes;
}

/** Sequences as the model's window settings say: windows, or a cut that is told. */
function readLong(model, read) {
  if (model.window.long !== "cut" || read.ids.length <= model.window.length) {
    return { read, sequences: sequencesOf(model, read), notes: [] };
  }
  const kept = cutTo(read, model.window.length);
  return { read: kept, sequences: sequencesOf(model, kept), notes: [["cut", { tokens: kept.cut, limit: model.window.length }]] };
}

const tasks = {
  async fill(model, { text }, top = 5) {
    requireText(text);
    const tokenizer = await tokenizerOf(model), read = encodeTexts(tokenizer, model, [text]);
    requireShort(model, read);
    const masks = masksOf(text, read, tokenizer, model.tokenizer.mask);
    const ask = (sequences) =>
      runEach(model.name, "masked", sequences.map(([ids]) => ({ ids, segments: ids.map(() => 0) })), "logits", (logits, row, i) =>
        tokenRows(logits, row, sequences[i][1]),
      );
    const found = await fill(read.ids, masks, top, tokenizer.pieces.length, ask);
    const results = found.map(({ tokens, score }) => ({
      score, words: tokens.map(([, id]) => tokenizer.pieces[id]), parts: filledText(text, read, tokens, tokenizer),
    }));
    return { results, notes: notesOf(model, [], read.ids, text) };
  },

  async attention(model, { text }) {
    requireText(text);
    const tokenizer = await tokenizerOf(model), whole = encodeTexts(tokenizer, model, [text]);
    const read = cutTo(whole, Math.min(MOST_SHOWN, model.maxLength));
    const names = Array.from({ length: model.layers }, (_, i) => `attentions.${i}`);
    const outputs = await run(model.name, model.attentions, [read], names);
    const tokens = read.ids.map((id, i) => {
      const [start, end] = read.offsets[i];
      return { piece: tokenizer.pieces[id], text: text.slice(start, end) || tokenizer.pieces[id] };
    });
    const notes = read.cut ? [["cut", { tokens: read.cut, limit: read.ids.length }]] : [];
    notes.push(...notesOf(model, [], read.ids, text));
    return { tokens, maps: names.map((name) => outputs[name].data), heads: outputs[names[0]].dims[1], notes };
  },

  async classify(model, { text, second }) {
    const texts = model.texts === 2 ? [text, second] : [text];
    requireText(...texts);
    const tokenizer = await tokenizerOf(model);
    const { read, sequences, notes } = readLong(model, encodeTexts(tokenizer, model, texts));
    const rows = await runEach(model.name, "sequence", sequences, "logits", firstRow);
    const scores = classify(rows, model);
    return { results: ranked(scores, model), kind: model.kind, notes: [...notes, ...notesOf(model, sequences, read.ids, ...texts)] };
  },

  async tag(model, { text }) {
    requireText(text);
    const tokenizer = await tokenizerOf(model), words = splitWords(text);
    const { read, sequences, notes } = readLong(model, encodeWords(tokenizer, model, text, words));
    const [from, to] = read.inside;
    const first = firstTokens(words, read.offsets.slice(from, to), from);
    const rows = words.map(() => null);
    await runEach(model.name, "token", sequences, "logits", (logits, row, i) => {
      const { own, ownEnd, shift } = sequences[i];
      first.forEach((token, word) => {
        if (token >= own && token < ownEnd) rows[word] = [...tokenRows(logits, row, [token - shift])[0]];
      });
    });
    return { results: tagged(rows, words, model), notes: [...notes, ...notesOf(model, sequences, read.ids, text)] };
  },

  async answer(model, { text, question }) {
    requireText(text, question);
    const tokenizer = await tokenizerOf(model);
    const { read, sequences, notes } = readLong(model, encodeTexts(tokenizer, model, [question, text], "second"));
    const views = [];
    for (const sequence of sequences) {
      const outputs = await run(model.name, "span", [sequence], ["start_logits", "end_logits"]);
      views.push({ ...sequence, starts: [...outputs.start_logits.data], ends: [...outputs.end_logits.data] });
    }
    return { results: answers(views, read.offsets, model), notes: [...notes, ...notesOf(model, sequences, read.ids, question, text)] };
  },

  async similar(model, { text, lines }) {
    requireText(text, lines);
    const tokenizer = await tokenizerOf(model);
    const kept = [...new Set(lines.split("\n").map((line) => line.trim()).filter(Boolean))];
    const reads = [text.trim(), ...kept].map((line) =>
      cutTo(encodeTexts(tokenizer, model, [model.prompt + line]), model.vectorLength),
    );
    const vectors = await runEach(model.name, "vectors", reads, "sentence_embedding", firstRow);
    const results = kept.map((line, i) => ({ text: line, score: cosine(vectors[0], vectors[i + 1]) }));
    const cut = reads.filter((read) => read.cut).length;
    const notes = cut ? [["cutLines", { lines: cut, limit: model.vectorLength }]] : [];
    const strange = [text, ...kept].filter((line) => isStrange(line, model.scripts)).length;
    if (strange) notes.push(["strangeLines", { lines: strange, count: reads.length }]);
    else notes.push(...notesOf(model, [], reads.flatMap(({ ids }) => ids)));
    return { results: results.sort((a, b) => b.score - a.score), notes };
  },
};

// ---------------------------------------------------------------------- messages

async function answer({ id, task, model, given }) {
  try {
    const before = opening, start = performance.now();
    const found = await tasks[task](models.get(model), given);
    const loading = opening - before;
    postMessage({ id, found, loading, took: performance.now() - start - loading });
  } catch (error) {
    const known = error instanceof PageError;
    postMessage({ id, error: known ? { code: error.code, values: error.values } : { code: "failed", values: { says: String(error.message ?? error) } } });
  }
}

addEventListener("message", ({ data }) => {
  if (data.models) for (const model of data.models) models.set(model.name, model);
  else queue = queue.then(() => answer(data));
});
