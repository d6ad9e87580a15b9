/* The view of attention weights: all heads as small pictures, one of them large, and its tokens to point at. */

import { make } from "./elements.js";
import { put } from "./texts.js";

/** found: {tokens, maps: [layers] of (heads · L · L), heads}. `says`: the texts of the language. */
export function attentionView({ tokens, maps, heads }, says) {
  const size = tokens.length;
  const weights = (layer, head) => maps[layer].subarray(head * size * size, (head + 1) * size * size);
  const state = { layer: Math.floor(maps.length / 2), head: 0, source: Math.min(1, size - 1) };
  const title = make("h2", { class: "chosen" }), said = make("p", { class: "said", "aria-live": "polite" });
  const canvas = make("canvas", { class: "map", role: "img" });
  const buttons = tokens.map((token, i) => {
    const point = () => ((state.source = i), showTokens());
    return make("button", { type: "button", onmouseenter: point, onfocus: point, onclick: point }, token.text);
  });

  function showTokens() {
    const own = weights(state.layer, state.head), row = own.subarray(state.source * size, (state.source + 1) * size);
    buttons.forEach((button, i) => {
      button.style.background = heat(row[i]);
      button.title = row[i].toFixed(3);
      button.className = i === state.source ? "source" : "";
    });
    const best = row.reduce((top, value, i) => (value > row[top] ? i : top), 0);
    say(state.source, best, row[best]);
  }

  function say(from, to, value) {
    said.textContent = put(says.weight, { from: tokens[from].text, to: tokens[to].text, value: value.toFixed(3) });
  }

  function show() {
    const names = { layer: state.layer + 1, head: state.head + 1 };
    title.textContent = put(says.headName, names);
    canvas.setAttribute("aria-label", put(says.mapName, names));
    drawMap(canvas, weights(state.layer, state.head), tokens);
    showTokens();
  }

  canvas.addEventListener("mousemove", (event) => {
    const { left, top, width, height } = canvas.getBoundingClientRect();
    const room = Number(canvas.dataset.room), cell = (canvas.width - room) / size;
    const column = Math.floor((((event.clientX - left) / width) * canvas.width - room) / cell);
    const row = Math.floor((((event.clientY - top) / height) * canvas.height - room) / cell);
    if (row < 0 || column < 0 || row >= size || column >= size) return;
    say(row, column, weights(state.layer, state.head)[row * size + column]);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => canvas.isConnected && (show(), grid.redraw()));

  const grid = headGrid(maps.length, heads, weights, size, state, show, says);
  const view = make(
    "div", { class: "attention" },
    make(
      "section", {},
      make("h2", {}, says.heads), grid, make("p", { class: "hint" }, says.headsHint),
      title, make("p", { class: "tokens", dir: "auto" }, ...buttons), make("p", { class: "hint" }, says.tokensHint), said,
    ),
    canvas,
  );
  requestAnimationFrame(() => (grid.redraw(), show())); // once the colours of the page are known
  return view;
}

function headGrid(layers, heads, weights, size, state, show, says) {
  const grid = make("div", { class: "heads", role: "radiogroup", "aria-label": says.heads });
  grid.style.gridTemplateColumns = `1.4rem repeat(${layers}, minmax(0, 1fr))`;
  grid.append(make("span"), ...Array.from({ length: layers }, (_, i) => make("span", { title: `${says.layer} ${i + 1}` }, String(i + 1))));
  const cells = [];
  const select = (layer, head, takesFocus) => {
    [state.layer, state.head] = [(layer + layers) % layers, (head + heads) % heads];
    for (const cell of cells) {
      const isChosen = cell.layer === state.layer && cell.head === state.head;
      cell.button.setAttribute("aria-checked", isChosen);
      cell.button.tabIndex = isChosen ? 0 : -1;
      if (isChosen && takesFocus) cell.button.focus();
    }
    show();
  };
  const MOVES = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
  for (let head = 0; head < heads; head++) {
    grid.append(make("span", { title: `${says.head} ${head + 1}` }, String(head + 1)));
    for (let layer = 0; layer < layers; layer++) {
      const canvas = make("canvas", { width: size, height: size, "aria-hidden": "true" });
      const isChosen = layer === state.layer && head === state.head;
      const button = make("button", {
        type: "button", role: "radio", "aria-checked": String(isChosen), tabindex: isChosen ? 0 : -1,
        "aria-label": put(says.headName, { layer: layer + 1, head: head + 1 }),
        onclick: () => select(layer, head, false),
        onkeydown: (event) => {
          if (!MOVES[event.key]) return;
          event.preventDefault();
          select(state.layer + MOVES[event.key][0], state.head + MOVES[event.key][1], true);
        },
      }, canvas);
      cells.push({ layer, head, button, canvas });
      grid.append(button);
    }
  }
  grid.redraw = () => cells.forEach(({ layer, head, canvas }) => drawCells(canvas.getContext("2d"), weights(layer, head), size, 0, 1));
  return grid;
}

const heat = (weight) => `rgb(${getComputedStyle(document.documentElement).getPropertyValue("--heat")}, ${Math.sqrt(weight).toFixed(3)})`;

/** Weights as squares. The square root makes small ones visible. */
function drawCells(context, weights, size, room, cell) {
  const colour = getComputedStyle(document.documentElement).getPropertyValue("--heat");
  context.clearRect(room, room, size * cell, size * cell);
  for (let row = 0; row < size; row++) {
    for (let column = 0; column < size; column++) {
      context.fillStyle = `rgba(${colour}, ${Math.sqrt(weights[row * size + column]).toFixed(3)})`;
      context.fillRect(room + column * cell, room + row * cell, cell > 4 ? cell - 1 : cell, cell > 4 ? cell - 1 : cell);
    }
  }
}

/** The large picture, with its tokens on the left and on top. */
function drawMap(canvas, weights, tokens) {
  const size = tokens.length, cell = Math.max(12, Math.min(36, Math.floor(900 / size)));
  const context = canvas.getContext("2d"), style = getComputedStyle(document.body);
  const font = `${Math.min(18, Math.max(11, cell * 0.6))}px ${style.fontFamily}`;
  const names = tokens.map(({ text }) => (text.length > 12 ? `${text.slice(0, 11)}…` : text));
  context.font = font;
  const room = Math.ceil(Math.max(...names.map((name) => context.measureText(name).width))) + 14;
  canvas.width = canvas.height = room + size * cell; // this clears the font too
  canvas.style.maxWidth = `${canvas.width}px`;
  canvas.dataset.room = room;
  drawCells(context, weights, size, room, cell);
  context.fillStyle = style.color;
  context.font = font;
  context.textBaseline = "middle";
  names.forEach((shown, i) => {
    const middle = room + (i + 0.5) * cell;
    context.textAlign = "right";
    context.fillText(shown, room - 8, middle);
    context.save();
    context.translate(middle, room - 8);
    context.rotate(-Math.PI / 2);
    context.textAlign = "left";
    context.fillText(shown, 0, 0);
    context.restore();
  });
}
