/* Texts in writing systems that a model does not read, as bothways.text.scripts finds them. */

/** The letters of the main writing systems: first and last code point. */
const RANGES = [
  [0x41, 0x5a, "Latin"], [0x61, 0x7a, "Latin"], [0xc0, 0x24f, "Latin"], [0x370, 0x3ff, "Greek"],
  [0x400, 0x52f, "Cyrillic"], [0x531, 0x58f, "Armenian"],
  [0x5d0, 0x5f4, "Hebrew"], [0x620, 0x6ff, "Arabic"], [0x900, 0x97f, "Devanagari"],
  [0x980, 0x9ff, "Bengali"], [0xa00, 0xa7f, "Gurmukhi"], [0xa80, 0xaff, "Gujarati"], [0xb80, 0xbff, "Tamil"],
  [0xc00, 0xc7f, "Telugu"], [0xc80, 0xcff, "Kannada"], [0xd00, 0xd7f, "Malayalam"],
  [0xd80, 0xdff, "Sinhala"], [0xe00, 0xe7f, "Thai"], [0xe80, 0xeff, "Lao"], [0xf00, 0xfff, "Tibetan"],
  [0x1000, 0x109f, "Burmese"], [0x10a0, 0x10ff, "Georgian"], [0x1100, 0x11ff, "Korean"],
  [0x1200, 0x139f, "Ethiopic"], [0x1780, 0x17ff, "Khmer"], [0x1e00, 0x1eff, "Latin"], [0x1f00, 0x1fff, "Greek"],
  [0x3041, 0x30ff, "Japanese"], [0x3400, 0x4dbf, "Chinese"], [0x4e00, 0x9fff, "Chinese"],
  [0xac00, 0xd7af, "Korean"], [0xf900, 0xfaff, "Chinese"], [0x20000, 0x3ffff, "Chinese"],
];
const WORDS = ["Chinese", "Japanese", "Korean"]; // a character is half a word: it counts 10, a letter of an alphabet 3
const LOOKED_AT = 128;
const FEWEST = 2, FEWEST_LATIN = 12, SHARE = 0.25, SHARE_OF_LATIN = 0.5; // names are written in Latin letters everywhere

/** Whether a good share of the letters at the start of a text is of scripts that are not known. */
export function isStrange(text, known) {
  const counts = new Map();
  for (const character of [...text.slice(0, 2 * LOOKED_AT)].slice(0, LOOKED_AT)) {
    const code = character.codePointAt(0);
    const script = RANGES.find(([first, last]) => first <= code && code <= last)?.[2];
    if (script) counts.set(script, (counts.get(script) ?? 0) + 1);
  }
  if (counts.has("Japanese")) counts.delete("Chinese"); // Japanese is written with Chinese characters too
  const weight = (script) => (counts.get(script) ?? 0) * (WORDS.includes(script) ? 10 : 3);
  const sum = (scripts, value) => scripts.reduce((total, script) => total + value(script), 0);
  const all = sum([...counts.keys()], weight);
  const unknown = [...counts.keys()].filter((script) => !known.includes(script));
  if (unknown.includes("Latin") && counts.get("Latin") >= FEWEST_LATIN && weight("Latin") > SHARE_OF_LATIN * all) return true;
  const others = unknown.filter((script) => script !== "Latin");
  return sum(others, weight) > SHARE * all && sum(others, (script) => counts.get(script)) >= FEWEST;
}
