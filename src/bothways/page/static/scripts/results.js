/* The answers of each tab as elements. */

import { attentionView } from "./attention.js";
import { bars, make, markedText, percent } from "./elements.js";
import { put } from "./texts.js";

const SHOWN = 8; // labels at first

export const RESULTS = {
  fill({ results }) {
    const best = make("p", { class: "reading", dir: "auto" });
    for (const { text, isFilled } of results[0]?.parts ?? []) best.append(isFilled ? make("mark", { class: "filled" }, text) : text);
    return [best, bars(results.map(({ words, score }, i) => [words.join(" · "), score, percent(score), { isBest: i === 0 }]))];
  },

  attention(found, _, __, says) {
    return [attentionView(found, says)];
  },

  classify({ results, kind }, _, model, says) {
    if (kind === "regression") return [make("p", { class: "answer" }, results[0].score.toFixed(3))];
    const row = ({ label, score, chosen }) => {
      const threshold = kind === "multi" ? (model.thresholds[label] ?? 0.5) : null;
      const thresholdText = threshold === null ? "" : put(says.threshold, { value: threshold.toFixed(2) });
      return [label, score, percent(score), { isBest: chosen, threshold, thresholdText }];
    };
    const chosen = results.filter((result) => result.chosen).map(({ label }) => label);
    const found = [make("p", { class: "answer" }, chosen.join(", ") || says.noLabel), bars(results.slice(0, SHOWN).map(row))];
    if (results.length > SHOWN) found.push(...moreRows(results.slice(SHOWN).map(row), results.length, says));
    if (kind === "multi") found.push(make("p", { class: "hint" }, says.thresholds));
    return found;
  },

  tag({ results }, { text }, model, says) {
    if (!results.length) return [make("p", { class: "reading" }, text), make("p", { class: "empty" }, says.noTags)];
    const marks = results.map((result) => ({ ...result, colour: model.colours[result.label] }));
    const labels = [...new Set(results.map(({ label }) => label))].sort();
    const legend = labels.map((label) => {
      const mark = make("mark", {}, `${label} ${results.filter((result) => result.label === label).length}`);
      mark.style.background = model.colours[label];
      return make("li", {}, mark);
    });
    return [markedText(text, marks), make("ul", { class: "legend" }, ...legend)];
  },

  answer({ results }, { text }, _, says) {
    const best = results[0], isNone = best.start === best.end;
    const shown = (result) => (result.start === result.end ? says.noAnswer : text.slice(result.start, result.end));
    const rows = results.map((result, i) => [shown(result), result.score, percent(result.score), { isBest: i === 0 }]);
    return [make("p", { class: "answer", dir: "auto" }, shown(best)), markedText(text, isNone ? [] : [best]), bars(rows)];
  },

  similar({ results }) {
    return [bars(results.map(({ text, score }, i) => [text, score, score.toFixed(3), { isBest: i === 0 }]), "lines")];
  },
};

function moreRows(rows, count, says) {
  const rest = bars(rows);
  rest.hidden = true;
  const button = make("button", { type: "button", class: "more", "aria-expanded": "false" }, put(says.more, { count }));
  button.addEventListener("click", () => {
    rest.hidden = !rest.hidden;
    button.setAttribute("aria-expanded", !rest.hidden);
    button.textContent = rest.hidden ? put(says.more, { count }) : says.fewer;
  });
  return [rest, button];
}
