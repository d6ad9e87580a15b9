/* Texts as sequences of tokens that fit the model: whole, cut, or in overlapping windows, as in bothways. */

/** A sentence for the person at the page: `code` names it in texts.js, `values` are its numbers and names. */
export class PageError extends Error {
  constructor(code, values = {}) {
    super(code);
    this.code = code;
    this.values = values;
  }
}

/** [CLS] text [SEP], or [CLS] text [SEP] text [SEP]. `inside`: the tokens that windows divide, of the longer text or of the second. */
export function encodeTexts(tokenizer, model, texts, part = "longer") {
  const { cls, sep } = model.tokenizer;
  const ids = [cls], offsets = [[0, 0]], segments = [0], ranges = [];
  texts.forEach((text, number) => {
    const own = tokenizer.encode(text), start = ids.length;
    ids.push(...own.ids, sep);
    offsets.push(...own.offsets, [0, 0]);
    while (segments.length < ids.length) segments.push(number);
    ranges.push([start, ids.length - 1]);
  });
  const size = ([first, last]) => last - first;
  const second = ranges.length > 1 && (part === "second" || size(ranges[1]) > size(ranges[0]));
  return { ids, offsets, segments, ranges, inside: ranges[second ? 1 : 0] };
}

/** The sequences of a text: {ids, segments, shift, own, ownEnd, end}, where token t of the text is token t - shift. */
export function sequencesOf(model, read) {
  const { length, overlap, long } = model.window;
  const [from, to] = read.inside;
  if (read.ids.length <= length) {
    return [{ ids: read.ids, segments: read.segments, shift: 0, own: from, ownEnd: to, end: to }];
  }
  const outside = read.ids.length - (to - from), room = length - outside;
  if (long === "error") throw new PageError("tooLong", { tokens: read.ids.length, limit: length });
  if (room < Math.floor(length / 8)) throw new PageError("noRoom", { tokens: outside, limit: length });
  return windows(to - from, room, Math.min(overlap, Math.floor(room / 4))).map((w) => {
    const pick = (row) => [...row.slice(0, from), ...row.slice(from + w.start, from + w.end), ...row.slice(to)];
    return {
      ids: pick(read.ids), segments: pick(read.segments), shift: w.start,
      own: from + w.own, ownEnd: from + w.ownEnd, end: from + w.end,
    };
  });
}

/** Covers `length` tokens by windows of at most `room` that share `overlap` tokens; the overlap is split in the middle. */
export function windows(length, room, overlap) {
  const found = [];
  for (let start = 0; start < Math.max(length - overlap, 1); start += room - overlap) {
    const end = Math.min(start + room, length);
    const own = start === 0 ? 0 : start + Math.floor(overlap / 2);
    const ownEnd = end === length ? end : end - (overlap - Math.floor(overlap / 2));
    found.push({ start, end, own, ownEnd });
  }
  return found;
}

/** The beginning of one text or two that fits: the longer loses its last token first. `cut`: the tokens lost. */
export function cutTo(read, limit) {
  if (read.ids.length <= limit) return { ...read, cut: 0 };
  const lengths = read.ranges.map(([first, last]) => last - first);
  const kept = keptLengths(lengths, limit - (read.ids.length - lengths.reduce((a, b) => a + b, 0)));
  const isLost = (i) => read.ranges.some(([first, last], n) => i >= first + kept[n] && i < last);
  const pick = (row) => row.filter((_, i) => !isLost(i));
  let moved = 0;
  const ranges = read.ranges.map(([first, last], n) => {
    const own = [first - moved, first - moved + kept[n]];
    moved += last - first - kept[n];
    return own;
  });
  const inside = ranges[read.ranges.indexOf(read.inside)];
  const [ids, segments, offsets] = [read.ids, read.segments, read.offsets].map(pick);
  return { ids, segments, offsets, ranges, inside, cut: read.ids.length - limit };
}

function keptLengths(lengths, room) {
  if (lengths.length === 1) return [room];
  const half = Math.floor(room / 2);
  if (lengths[1] <= half) return [room - lengths[1], lengths[1]];
  return lengths[0] <= room - half ? [lengths[0], room - lengths[0]] : [room - half, half];
}

/** The first token of each word; -1 if the tokenizer drops the word. `offsets`: those of the tokens inside, in the text. */
export function firstTokens(words, offsets, before) {
  return words.map(([first, last]) => {
    let place = -1;
    while (place + 1 < offsets.length && offsets[place + 1][0] <= first) place++;
    if (place < 0 || offsets[place][1] <= first) place++;
    return place < offsets.length && offsets[place][0] < last ? place + before : -1;
  });
}

/** Where words begin inside a token that began with another word: there a space is put before the text is read. */
export function splitPoints(text, words, offsets) {
  const tokens = offsets.filter(([start, end]) => start < end);
  const found = new Set();
  for (const [first] of words) {
    let place = -1;
    while (place + 1 < tokens.length && tokens[place + 1][0] < first) place++;
    if (place >= 0 && first < tokens[place][1] && text.slice(tokens[place][0], first).trim()) found.add(first);
  }
  return [...found].sort((a, b) => a - b);
}

/** A text with given words, so that no token spans two of them. */
export function encodeWords(tokenizer, model, text, words) {
  const whole = encodeTexts(tokenizer, model, [text]);
  const points = splitPoints(text, words, whole.offsets);
  if (!points.length) return whole;
  const parts = [0, ...points].map((from, i) => text.slice(from, points[i] ?? text.length));
  const read = encodeTexts(tokenizer, model, [parts.join(" ")]);
  const back = (place) => place - points.filter((point, i) => point + i < place).length;
  return { ...read, offsets: read.offsets.map(([start, end]) => [back(start), back(end)]) };
}
