// Ask `bothways serve sentence sentence-zh emotion zh` from JavaScript: node examples/serve/ask.mjs http://127.0.0.1:8000
// In a browser too, if the service was started with --cors and the origin of the page.
const address = process.argv[2] ?? "http://127.0.0.1:8000";
const key = process.env.BOTHWAYS_API_KEY;

async function post(path, value) {
  const headers = { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };
  const answer = await fetch(address + path, { method: "POST", headers, body: JSON.stringify(value) });
  const found = await answer.json();
  if (!answer.ok) throw new Error(`${answer.status}: ${JSON.stringify(found)}`);
  return found;
}

const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
for (const [model, texts] of [
  ["sentence", ["The cat sleeps.", "A kitten is asleep."]],
  ["sentence-zh", ["猫在睡觉。", "小猫睡着了。"]],
]) {
  const { data } = await post("/v1/embeddings", { model, input: texts });
  console.log(dot(data[0].embedding, data[1].embedding).toFixed(2), ...texts);
}
console.log((await post("/predict", { model: "emotion", text: "Thank you so much!" })).answer);
console.log((await post("/fill", { model: "zh", text: "不要[MASK]费粮食。", top: 1 })).answer[0].text);
