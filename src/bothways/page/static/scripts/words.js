/* Splits a text into words, as bothways/data/words.py does: as the Penn Treebank and Universal Dependencies. */

import { isCjk } from "./tokenizer.js";

// English clitics, which treebanks split off.
const CLITIC = new RegExp(
  "(?:(?:(?<=\\p{L})|(?<=[\\u0300-\\u036f])|(?<=[A-Za-z]\\.)|(?<!\\S))['’](?:[Ss]|[Mm]|[Dd]|[Rr][Ee]|[Vv][Ee]|[Ll][Ll])" +
    "|(?<=[0-9])['’][Ss]" +
    "|[Nn]['’][Tt]" +
    "|(?<=(?<![\\p{L}\\p{N}_])[Cc][Aa][Nn])[Nn][Oo][Tt]" +
    ")(?![\\p{L}\\p{N}_])",
  "gu",
);
// Words that contain or consist of punctuation: links, addresses, numbers, abbreviations, names, smileys, dots.
const WHOLE = new RegExp(
  [
    "(?:[Hh][Tt][Tt][Pp][Ss]?:\\/\\/|[Ww][Ww][Ww]\\.)[!#-;=?-~]*[\\w/]",
    "(?<![\\w.+-])[\\w.+-]+@[\\w-]+(?:\\.[\\w-]+)+",
    "(?<![\\w.,:/０-９])[0-9０-９]+(?:[.,:/．：／][0-9０-９]+)+",
    "(?<![\\w.])(?:[A-Za-z]\\.){2,}(?:[A-Za-z](?!\\w))?",
    "(?<!\\w)(?:Mr|Mrs|Ms|Dr|St|Inc|Jr)\\.",
    "(?<!\\w)(?:[OD]['’][A-Z]\\w+|[Oo]['’][Cc][Ll][Oo][Cc][Kk]|[Mm][Aa]['’][Aa][Mm])",
    "(?<![\\w)])[:;]-?(?:[()]+|[DdPp])(?!\\w)",
    "([!?.*=~#$<>+-])\\1+",
  ].join("|"),
  "g",
);
const ATTACHED = /[\p{M}\p{Cc}\p{Cf}\u{1f3fb}-\u{1f3ff}]/u;
const RUN = /[\p{L}\p{N}]/u;
const WIDE = /[０-９Ａ-Ｚａ-ｚ]/;
const SPACE = /[\p{White_Space}\x1c-\x1f]/u; // as Python's str.isspace

function kindOf(char) {
  if (SPACE.test(char)) return "space";
  if (ATTACHED.test(char)) return "attached";
  return RUN.test(char) && (WIDE.test(char) || !isCjk(char)) ? "run" : "mark";
}

/** The spans of the words, [[start, end], …]: runs of letters and digits, single marks, and each Chinese character. */
export function splitWords(text) {
  const spans = unbrokenSpans(text), words = [];
  let first = -1, until = 0, index = 0; // start of the open run, or -1; end of the latest unbroken span
  for (const char of text) {
    const next = index + char.length, kind = kindOf(char);
    if (kind === "attached") {
      const last = words[words.length - 1];
      if (first < 0 && last && last[1] === index) last[1] = next;
    } else {
      const begins = index >= until && spans.has(index);
      const isCut = begins || index === until;
      until = begins ? spans.get(index) : until;
      const runs = index < until || kind === "run";
      if (first >= 0 && (!runs || isCut)) {
        words.push([first, index]);
        first = -1;
      }
      if (runs) first = first < 0 ? index : first;
      else if (kind === "mark") words.push([index, next]);
    }
    index = next;
  }
  if (first >= 0) words.push([first, text.length]);
  return words;
}

function unbrokenSpans(text) {
  const spans = new Map();
  let place = 0;
  for (const part of text.split(" ")) {
    for (const match of [...part.matchAll(CLITIC), ...part.matchAll(WHOLE)]) {
      let end = match.index + match[0].length;
      while (end < part.length) {
        const char = String.fromCodePoint(part.codePointAt(end));
        if (kindOf(char) !== "attached") break;
        end += char.length;
      }
      spans.set(place + match.index, place + end);
    }
    place += part.length + 1;
  }
  return spans;
}
