/* Fill-mask as in bothways: the most confident mask is filled first, and the fillings are ranked by pseudo-likelihood. */

import { logSumExp } from "./decode.js";
import { PageError } from "./reading.js";
import { isWordCharacter } from "./tokenizer.js";

const MAX_BEAM = 256;

/** The masks of an encoded text: {place, test}, where `test(id)` says whether a token can stand there. */
export function masksOf(text, read, tokenizer, mask) {
  const places = read.ids.flatMap((id, i) => (id === mask ? [i] : []));
  if (!places.length) throw new PageError("noMask");
  return new Map(places.map((place) => [place, allowed(text, read, place, places, tokenizer)]));
}

/** Where a word begins, a continuation (##ing) is no answer; directly after a word, only a continuation is one. */
function allowed(text, read, place, places, tokenizer) {
  const start = read.offsets[place][0];
  const isWord = (id) => !tokenizer.isWordless(id);
  if (places.includes(place - 1) && read.offsets[place - 1][1] === start) return isWord;
  const before = [...text.slice(Math.max(start - 2, 0), start)].pop();
  if (isWordCharacter(before)) return (id) => isWord(id) && !isWordCharacter([...tokenizer.pieces[id]][0]);
  return (id) => isWord(id) && !tokenizer.isRest(id);
}

/** The `top` best fillings, [{score, tokens: [[place, id], …]}]. `ask(sequences)` gives for each [ids, places] the logits of these places. */
export async function fill(ids, masks, top, size, ask) {
  const width = masks.size === 1 ? top : Math.min(Math.max(2 * top, 16), MAX_BEAM);
  let beam = [{ tokens: [], logit: 0 }];
  for (let filled = 0; filled < masks.size; filled++) {
    const open = beam.map((guess) => [...masks.keys()].filter((place) => !guess.tokens.some(([done]) => done === place)));
    const rows = await ask(beam.map((guess, i) => [withTokens(ids, guess.tokens), open[i]]));
    const grown = new Map();
    beam.forEach((guess, i) => grow(guess, open[i], rows[i], masks, width, size, grown));
    beam = [...grown.values()].sort((a, b) => b.logit - a.logit).slice(0, width);
  }
  if (masks.size > 1) beam = await byPseudoLikelihood(ids, beam, size, ask);
  return beam.slice(0, top).map(({ tokens, logit }) => ({
    tokens: [...tokens].sort((a, b) => a[0] - b[0]), score: Math.exp(logit / tokens.length),
  }));
}

function withTokens(ids, tokens) {
  const found = [...ids];
  for (const [place, id] of tokens) found[place] = id;
  return found;
}

/** Fills the mask of which the model is most confident. */
function grow(guess, places, rows, masks, width, size, grown) {
  const best = places.map((place, i) => mostProbable(rows[i], masks.get(place), width, size));
  const sure = best.reduce((top, own, i) => ((own[0]?.[1] ?? -Infinity) > (best[top][0]?.[1] ?? -Infinity) ? i : top), 0);
  for (const [id, logit] of best[sure]) {
    const tokens = [...guess.tokens, [places[sure], id]], sum = guess.logit + logit;
    const key = [...tokens].sort((a, b) => a[0] - b[0]).join(";"); // two orders may give the same words
    if (!(grown.get(key)?.logit >= sum)) grown.set(key, { tokens, logit: sum });
  }
}

/** [[id, log-probability], …] of the tokens that can stand there; the others keep their share of the probability. */
function mostProbable(row, test, count, size) {
  const all = logSumExp(row), best = [];
  for (let id = 0; id < size; id++) {
    if (best.length === count && row[id] <= best[count - 1][1]) continue;
    if (!test(id)) continue;
    let at = best.length;
    while (at && best[at - 1][1] < row[id]) at--;
    best.splice(at, 0, [id, row[id]]);
    if (best.length > count) best.pop();
  }
  return best.map(([id, logit]) => [id, logit - all]);
}

/** Each word alone is masked and scored with all the others in place. */
async function byPseudoLikelihood(ids, beam, size, ask) {
  const asked = beam.flatMap(({ tokens }) =>
    tokens.map(([place]) => [withTokens(ids, tokens.filter(([own]) => own !== place)), [place]]),
  );
  const rows = await ask(asked);
  let next = 0;
  const found = beam.map(({ tokens }) => {
    let logit = 0;
    for (const [, id] of tokens) {
      const [row] = rows[next++];
      logit += row[id] - logSumExp(row);
    }
    return { tokens, logit };
  });
  return found.sort((a, b) => b.logit - a.logit);
}

/** The text with its masks filled, in parts: [{text, isFilled}]. */
export function filledText(text, read, tokens, tokenizer) {
  const parts = [];
  let done = 0;
  for (const [place, id] of tokens) {
    const [start, end] = read.offsets[place];
    parts.push({ text: text.slice(done, start), isFilled: false });
    const piece = tokenizer.pieces[id];
    parts.push({ text: piece.startsWith(tokenizer.prefix) ? piece.slice(tokenizer.prefix.length) : piece, isFilled: true });
    done = end;
  }
  parts.push({ text: text.slice(done), isFilled: false });
  return parts;
}
