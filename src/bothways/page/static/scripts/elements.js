/* Small helpers that make elements, and what several tabs show. */

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

export const percent = (value) => `${(100 * value).toFixed(1)} %`;

/** A row with a bar: [name, value from 0 to 1, shown value, options]. */
function bar(name, value, shown, { isBest = false, threshold = null, thresholdText = "" } = {}) {
  const fill = make("span");
  fill.style.width = `${Math.max(0, Math.min(1, value)) * 100}%`;
  const track = make("div", { class: "track", "aria-hidden": "true" }, fill);
  if (threshold !== null) {
    const line = make("i", { title: thresholdText });
    line.style.left = `${threshold * 100}%`;
    track.append(line);
  }
  return make("li", { class: isBest ? "best" : "" }, make("span", { class: "name-of" }, name), track, make("span", { class: "value" }, shown));
}

export function bars(rows, className = "") {
  return make("ul", { class: `rows ${className}` }, ...rows.map((row) => bar(...row)));
}

/** A text with marked spans [{start, end, label, colour, score}]; the label may be "". */
export function markedText(text, marks) {
  const found = make("p", { class: "reading", dir: "auto" });
  let done = 0;
  for (const { start, end, label, colour, score } of marks) {
    found.append(text.slice(done, start));
    const mark = make("mark", { title: percent(score) }, text.slice(start, end));
    if (label) mark.append(make("small", {}, label));
    if (colour) mark.style.background = colour;
    found.append(mark);
    done = end;
  }
  found.append(text.slice(done));
  return found;
}
