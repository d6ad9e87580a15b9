"""Drives the page of the included models in Chromium and compares its answers with Python's: `make page-test`.

It writes screenshots of every tab in both languages, light and dark, on a desktop and on a phone.
"""

import argparse
import functools
import http.server
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np

import bothways
from bothways.page.write import write_page
from bothways.predict.predictor import Predictor

CONTEXT = (
    "The Golden Gate Bridge connects San Francisco to Marin County. Construction began in January 1933 under the "
    "engineer Joseph Strauss, and the bridge was opened in May 1937."
)
LINES = ["How can I change my password?", "The parcel arrived two days late.", "我忘记了密码。"]
LONG = "The weather was fine and the people in the town were happy. " * 80
QUESTIONS: list[tuple[str, str, dict[str, str]]] = [
    ("fill", "en", {"text": "He poured the hot [MASK] into a cup."}),
    ("fill", "en", {"text": "He [MASK] the letter and put it in his [MASK]."}),
    ("fill", "zh", {"text": "今天天气很[MASK]，我们去公园散步吧。"}),
    ("fill", "zh", {"text": "我们坐[MASK][MASK]去上海。"}),
    ("classify", "en-emotion", {"text": "Thank you so much, this really made my day!"}),
    ("classify", "en-emotion", {"text": LONG + "I am so sorry."}),
    ("classify", "en-spam", {"text": "You have won a free holiday. Call 0800 123 456 now!"}),
    ("classify", "en-nli", {"text": "A man is playing a guitar on the street.", "second": "A musician performs outdoors."}),
    ("classify", "en-sentiment", {"text": "Not bad at all!"}),
    ("classify", "zh-sentiment", {"text": "服务态度很好，房间干净。"}),
    ("tag", "en-pos", {"text": "Anna didn't fly to Berlin 😀 on Monday; she took the 10:30 train."}),
    ("tag", "en-pos", {"text": LONG}),
    ("tag", "en-ner", {"text": "Angela Merkel visited Google in Paris."}),
    ("tag", "zh-ner", {"text": "鲁迅出生于浙江绍兴。"}),
    ("tag", "zh-pos", {"text": "😀 昨天在超市买了3.5斤苹果。"}),
    ("answer", "en-answer", {"question": "When was the bridge opened?", "text": CONTEXT}),
    ("answer", "en-answer", {"question": "When was the bridge opened?", "text": LONG + CONTEXT + LONG}),
    ("answer", "zh-answer", {"question": "猫头鹰白天在哪里睡觉？", "text": "猫头鹰白天在树洞里睡觉，晚上出来捕食老鼠。"}),
    ("similar", "sentence", {"text": "How do I reset my password?", "lines": "\n".join(LINES)}),
    ("similar", "sentence-zh", {"text": "How do I reset my password?", "lines": "\n".join(LINES)}),
    ("similar", "en", {"text": "How do I reset my password?", "lines": "\n".join(LINES)}),
    ("similar", "zh", {"text": "怎样修改密码？", "lines": "\n".join(LINES)}),
    ("attention", "en", {"text": "The animal didn't cross the street because it was too tired."}),
    ("attention", "zh", {"text": "小猫没有过马路，因为它太累了。"}),
]  # fmt: skip
TOLERANCE = 5e-3
"""Of probabilities from weights in 16 bits."""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="folder of the screenshots; playwright-core is in it")
    out = parser.parse_args().out.resolve()
    with tempfile.TemporaryDirectory() as home:
        page, given, found = (Path(home) / name for name in ("page", "given.json", "found.json"))
        written = write_page(page)
        print(f"{', '.join(written.models)}: {written.size / 1e6:.1f} MB", flush=True)
        given.write_text(json.dumps([{"task": t, "model": m, "given": g} for t, m, g in QUESTIONS]), encoding="utf-8")
        handler = functools.partial(Quiet, directory=page)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            words = [
                "node",
                Path(__file__).with_name("drive.mjs"),
                f"http://127.0.0.1:{server.server_port}/",
                given,
                found,
                out,
            ]
            subprocess.run(words, check=True, timeout=1800)
            server.shutdown()
        problems = check(json.loads(found.read_text(encoding="utf-8")))
    print("\n".join(problems) or f"all answers equal Python's; screenshots are in {out}")
    sys.exit(bool(problems))


def check(found: dict[str, Any]) -> list[str]:
    """What is wrong, a line each."""
    problems = list(found["problems"])
    for (task, model, given), ours in zip(QUESTIONS, found["answers"], strict=True):
        if "error" in ours:
            problems.append(f"{task} with {model}: {ours['error']}")
            continue
        print(f"{task:10}{model:12}{ours['took']:7.0f} ms, loading {ours['loading']:6.0f} ms")
        difference = compare(task, model, given, ours["found"])
        if not difference < TOLERANCE:
            problems.append(f"{task} with {model}: differs from Python by {difference}")
    problems += [f"{seen['tab']} {seen}" for seen in found["seen"] if seen["isError"] or seen["wide"] > 0]
    foreign = found["foreign"]
    if foreign["other"] != "refused" or not foreign["says"] or "connect-src" not in foreign["fromWorker"]:
        problems.append(f"the policy does not hold: {foreign}")
    keys = found["keyboard"]
    expected = {"focused": "tab-fill", "language": "zh-Hans", "unnamed": [], "head": "第 8 层第 1 头"}
    problems += [f"keyboard: {name} is {keys[name]!r}" for name, value in expected.items() if keys[name] != value]
    if "[MASK]" not in keys["error"] or "缺词" not in keys["translated"]:
        problems.append(f"the error is {keys['error']!r}, {keys['translated']!r}")
    return problems


def compare(task: str, model: str, given: dict[str, str], found: dict[str, Any]) -> float:
    """The largest difference of a score from Python's; infinite if an answer is another one."""
    ours = found.get("results", [])
    if task == "attention":
        loaded = bothways.load(model)
        batch = loaded.batch(loaded.require_tokenizer().batch([given["text"]]))
        maps = loaded.encoder.activations(batch, attentions=range(1, 13)).attentions
        pairs = zip(found["maps"], (maps[layer][0].detach().numpy().ravel() for layer in range(1, 13)), strict=True)
        return max(float(np.abs(np.array(one) - two).max()) for one, two in pairs)
    if task == "similar":
        lines = given["lines"].split("\n")
        first, *others = bothways.encode([given["text"], *lines], model)
        cosines = [float(first @ one / np.linalg.norm(first) / np.linalg.norm(one)) for one in others]
        return furthest(
            sorted(zip(lines, cosines, strict=True), key=lambda pair: -pair[1]),
            [(one["text"], one["score"]) for one in ours],
        )
    if task == "fill":
        filled = bothways.fill(given["text"], model)
        return furthest(
            [(one.text, one.score) for one in filled],
            [("".join(p["text"] for p in one["parts"]), one["score"]) for one in ours],
        )
    predict, text = Predictor.load(bothways.boxed(model.removeprefix("en-"))), given["text"]
    if task == "classify":
        theirs = predict((text, given["second"]) if "second" in given else text, top=99)
        return furthest(
            [(one["label"], one["score"]) for one in theirs], [(one["label"], one["score"]) for one in ours]
        )
    theirs = predict((given["question"], text), top=3) if task == "answer" else predict(text)
    utf16 = text.encode("utf-16-le")
    own = [
        (one.get("label", "answer"), utf16[2 * one["start"] : 2 * one["end"]].decode("utf-16-le"), one["score"])
        for one in ours
    ]
    return furthest(
        [((one.get("entity_group", "answer"), text[one["start"] : one["end"]]), one["score"]) for one in theirs],
        [((label, part), score) for label, part, score in own],
    )


def furthest(theirs: list[tuple[Any, float]], ours: list[tuple[Any, float]]) -> float:
    """Of answers in order. Those whose scores are nearly equal may change places."""
    if len(theirs) != len(ours):
        return float("inf")
    scores = max((abs(one[1] - two[1]) for one, two in zip(theirs, ours, strict=True)), default=0.0)
    if [one[0] for one in theirs] == [two[0] for two in ours]:
        return scores
    by_name = dict(ours)
    return max((abs(score - by_name.get(name, float("inf"))) for name, score in theirs), default=0.0)


if __name__ == "__main__":
    main()
