/* BERT's WordPiece, from a tokenizer.json. Offsets count UTF-16 units, as JavaScript's strings do. */

const MARK = /\p{Mn}/u;
const OTHER = /[\p{Cc}\p{Cf}\p{Co}]/u;
const SPACE = /\p{White_Space}/u;
const PUNCTUATION = /[!-/:-@[-`{-~\p{P}]/u;
const CHINESE = /[\u4e00-\u9fff\u3400-\u4dbf\u{20000}-\u{2a6df}\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b920}-\u{2ceaf}\uf900-\ufaff\u{2f800}-\u{2fa1f}]/u;
const WORD = /[\p{L}\p{N}]/u;

export class Tokenizer {
  /** @param file the content of tokenizer.json */
  constructor(file) {
    const { model, normalizer } = file;
    this.ids = new Map(Object.entries(model.vocab));
    this.unknown = model.unk_token;
    this.prefix = model.continuing_subword_prefix;
    this.longestWord = model.max_input_chars_per_word;
    this.options = normalizer;
    this.stripsAccents = normalizer.strip_accents ?? normalizer.lowercase;
    this.added = file.added_tokens;
    for (const token of this.added) this.ids.set(token.content, token.id);
    this.specials = new Set(this.added.filter((token) => token.special).map((token) => token.id));
    this.pieces = [];
    for (const [piece, id] of this.ids) this.pieces[id] = piece;
    this.longestPiece = Math.max(...this.pieces.map((piece) => (piece ?? "").length));
    this.kinds = new Map();
    const names = this.added.map((token) => token.content).sort((a, b) => b.length - a.length);
    this.split = names.length ? new RegExp(names.map((name) => name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|"), "g") : null;
  }

  /** The tokens of a text, without special tokens around it: {ids, offsets: [[start, end], …]}. */
  encode(text) {
    const found = { ids: [], offsets: [] };
    let done = 0;
    for (const match of this.split ? text.matchAll(this.split) : []) {
      this.encodePart(text, done, match.index, found);
      found.ids.push(this.ids.get(match[0]));
      found.offsets.push([match.index, (done = match.index + match[0].length)]);
    }
    this.encodePart(text, done, text.length, found);
    return found;
  }

  encodePart(text, from, to, found) {
    let word = [];
    const finish = () => {
      if (word.length) this.encodeWord(word, found);
      word = [];
    };
    for (const part of this.normalised(text, from, to)) {
      if (SPACE.test(part.char)) {
        finish();
      } else if (this.kind(part.char).isPunctuation) {
        finish();
        this.encodeWord([part], found);
      } else {
        word.push(part);
      }
    }
    finish();
  }

  /** The characters as the vocabulary has them, each with its place in the text: {char, start, end}. */
  *normalised(text, from, to) {
    let at = from;
    while (at < to) {
      const char = String.fromCodePoint(text.codePointAt(at));
      const start = at, end = (at += char.length);
      const { output } = this.kind(char);
      for (const own of output) yield { char: own, start, end };
    }
  }

  /** What becomes of a character, remembered. */
  kind(char) {
    let found = this.kinds.get(char);
    if (!found) this.kinds.set(char, (found = { output: this.normalisedCharacter(char), isPunctuation: PUNCTUATION.test(char) }));
    return found;
  }

  normalisedCharacter(char) {
    if (this.options.clean_text) {
      const isLineSpace = "\t\n\r".includes(char);
      if (char === "\ufffd" || (OTHER.test(char) && !isLineSpace)) return [];
      if (SPACE.test(char)) return [" "];
    }
    let chars = [char];
    if (this.stripsAccents) chars = [...char.normalize("NFD")].filter((own) => !MARK.test(own));
    if (this.options.lowercase) chars = chars.flatMap((own) => [...own.toLowerCase()]);
    return this.options.handle_chinese_chars && CHINESE.test(char) ? [" ", ...chars, " "] : chars;
  }

  encodeWord(word, found) {
    const whole = [word[0].start, word[word.length - 1].end];
    const ids = [], offsets = [];
    let start = word.length > this.longestWord ? -1 : 0;
    while (start >= 0 && start < word.length) {
      let end = Math.min(word.length, start + this.longestPiece), id;
      for (; end > start; end--) {
        const piece = word.slice(start, end).map((part) => part.char).join("");
        id = this.ids.get(start ? this.prefix + piece : piece);
        if (id !== undefined) break;
      }
      if (id === undefined) break;
      ids.push(id);
      offsets.push([word[start].start, word[end - 1].end]);
      start = end;
    }
    const isKnown = start === word.length;
    found.ids.push(...(isKnown ? ids : [this.ids.get(this.unknown)]));
    found.offsets.push(...(isKnown ? offsets : [whole]));
  }

  /** Whether a token continues a word, as ##ing does. */
  isRest(id) {
    return (this.pieces[id] ?? "").startsWith(this.prefix);
  }

  /** Whether a token can be no word of a text: special and unused ones, and ids without a piece. */
  isWordless(id) {
    const piece = this.pieces[id];
    return piece === undefined || this.specials.has(id) || (piece.startsWith("[unused") && piece.endsWith("]"));
  }
}

/** Whether a character can be part of a longer word: letters and digits, but no Chinese ones. */
export function isWordCharacter(char) {
  return char !== undefined && WORD.test(char) && !isCjk(char);
}

const CJK = [
  [0x2e80, 0x303f], [0x3040, 0x30ff], [0x31c0, 0x33ff], [0x3400, 0x4dbf], [0x4e00, 0x9fff], [0xf900, 0xfaff],
  [0xfe30, 0xfe4f], [0xff00, 0xffef], [0x20000, 0x3ffff],
];

/** Whether a character belongs to a script without spaces: Chinese characters, kana, and their punctuation. */
export function isCjk(char) {
  const code = char.codePointAt(0);
  return code >= 0x2e80 && CJK.some(([first, last]) => first <= code && code <= last);
}
