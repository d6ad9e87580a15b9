/* From logits to answers, as bothways' tasks do it. */

export function logSumExp(values) {
  const top = values.reduce((a, b) => Math.max(a, b), -Infinity);
  if (top === -Infinity) return top;
  let sum = 0;
  for (const value of values) sum += Math.exp(value - top);
  return top + Math.log(sum);
}

/** Probabilities of labels, or a number, from the logits of all windows of a text, which are averaged. */
export function classify(rows, { kind, temperature }) {
  const mean = rows[0].map((_, i) => rows.reduce((sum, row) => sum + row[i], 0) / rows.length);
  if (kind === "regression") return mean;
  const logits = mean.map((value) => value / temperature);
  if (kind === "multi") return logits.map((value) => Math.exp(value - logSumExp([value, 0])));
  const all = logSumExp(logits);
  return logits.map((value) => Math.exp(value - all));
}

/** Labels with their scores, the most probable first; `chosen` are those that the model gives as its answer. */
export function ranked(scores, { kind, labels, thresholds }) {
  const order = scores.map((score, i) => ({ label: labels[i], score, i })).sort((a, b) => b.score - a.score || a.i - b.i);
  return order.map(({ label, score }, place) => ({
    label, score, chosen: kind === "multi" ? score >= (thresholds[label] ?? 0.5) : place === 0,
  }));
}

// ---------------------------------------------------------------------- tags

export function isEntities(labels) {
  const inside = labels.filter((tag) => tag !== "O"), letters = new Set(inside.map((tag) => tag[0]));
  const isTyped = inside.every((tag) => tag.startsWith("B-") || tag.startsWith("I-"));
  const isBare = inside.length === 2 && inside.includes("B") && inside.includes("I");
  return isBare || (isTyped && (letters.size === 2 || labels.includes("O")));
}

/** Whether the tag may follow `last`: I-PER stands only after B-PER or I-PER. */
function mayFollow(last, tag, labels) {
  const isFree = tag[0] !== "I" || !labels.includes(`B${tag.slice(1)}`);
  return isFree || (last !== "O" && last.slice(1) === tag.slice(1));
}

/** The most probable valid sequence of tags: Viterbi. */
function bestPath(logs, labels) {
  if (!logs.length) return [];
  const steps = [...labels, "O"].map((last) => labels.map((tag) => (mayFollow(last, tag, labels) ? 0 : -1e9)));
  let best = logs[0].map((value, i) => value + steps[labels.length][i]);
  const came = [];
  for (const row of logs.slice(1)) {
    const back = labels.map((_, tag) => argmax(labels.map((_, last) => best[last] + steps[last][tag])));
    best = row.map((value, tag) => best[back[tag]] + steps[back[tag]][tag] + value);
    came.push(back);
  }
  const tags = [argmax(best)];
  for (const back of came.reverse()) tags.unshift(back[tags[0]]);
  return tags;
}

function argmax(values) {
  return values.reduce((best, value, i) => (value > values[best] ? i : best), 0);
}

/** The entities, or one tag for each word: [{label, score, start, end}]. `rows`: logits of each word, null if it was dropped. */
export function tagged(rows, words, { labels, temperature }) {
  const outside = labels.indexOf("O");
  const unread = labels.map((_, i) => (i === outside ? 10 : 0));
  const logs = rows.map((row) => {
    const logits = (row ?? unread).map((value) => value / temperature);
    const all = logSumExp(logits);
    return logits.map((value) => value - all);
  });
  const hasEntities = isEntities(labels);
  const tags = hasEntities ? bestPath(logs, labels) : logs.map(argmax);
  const scores = tags.map((tag, i) => Math.exp(logs[i][tag]));
  const spans = hasEntities ? entities(tags.map((tag) => labels[tag])) : tags.map((tag, i) => [labels[tag], i, i + 1]);
  return spans.map(([label, first, last]) => ({
    label, start: words[first][0], end: words[last - 1][1],
    score: scores.slice(first, last).reduce((a, b) => a + b, 0) / (last - first),
  }));
}

/** The entities in BIO tags, as conlleval reads them: [type, first word, end]. */
function entities(tags) {
  const found = [];
  tags.forEach((tag, i) => {
    const last = found[found.length - 1];
    if (tag === "O") return;
    const type = tag.slice(2) || "word";
    if (tag[0] === "I" && last && last[2] === i && last[0] === type) last[2] = i + 1;
    else found.push([type, i, i + 1]);
  });
  return found;
}

// ---------------------------------------------------------------------- answers

/** The best spans that do not overlap: [{start, end, score}], in characters; an empty span is "no answer".
 *
 * `views`: the windows, with their logits `starts` and `ends`. `offsets`: those of all tokens of the text.
 */
export function answers(views, offsets, { temperature, maxAnswerLength, thresholds }, count = 3) {
  const spans = [], nulls = [];
  for (const view of views) {
    const start = view.starts.map((value) => value / temperature), end = view.ends.map((value) => value / temperature);
    nulls.push(start[0] + end[0]);
    for (let first = view.own - view.shift; first < view.ownEnd - view.shift; first++) {
      const stop = Math.min(first + maxAnswerLength, view.end - view.shift);
      for (let last = first; last < stop; last++) {
        spans.push({ first: first + view.shift, last: last + view.shift, logit: start[first] + end[last] });
      }
    }
  }
  const nothing = Math.min(...nulls), mayBeNone = "null" in thresholds;
  if (!spans.length) return [{ start: 0, end: 0, score: 0 }];
  const all = logSumExp([...spans.map((span) => span.logit), ...(mayBeNone ? [nothing] : [])]);
  spans.sort((a, b) => b.logit - a.logit);
  const kept = [], found = [];
  for (const span of spans) {
    if (found.length === count) break;
    if (kept.some((other) => span.first <= other.last && span.last >= other.first)) continue;
    kept.push(span);
    const [start, end] = [offsets[span.first][0], offsets[span.last][1]];
    if (start < end) found.push({ start, end, score: Math.exp(span.logit - all) });
  }
  if (!mayBeNone) return found;
  const none = { start: 0, end: 0, score: Math.exp(nothing - all) };
  const isNone = nothing - spans[0].logit > thresholds.null;
  return isNone ? [none, ...found].slice(0, count) : [...found, none].slice(0, count);
}

// ---------------------------------------------------------------------- vectors

export function cosine(a, b) {
  let dot = 0, one = 0, two = 0;
  for (let i = 0; i < a.length; i++) {
    dot += a[i] * b[i];
    one += a[i] * a[i];
    two += b[i] * b[i];
  }
  return dot / (Math.sqrt(one * two) || 1);
}
