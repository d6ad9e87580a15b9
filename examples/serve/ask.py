"""Ask `bothways serve sentence sentence-zh emotion zh` with OpenAI's client and with Python's own library.

python examples/serve/ask.py http://127.0.0.1:8000
"""

import json
import os
import sys
import urllib.request
from typing import Any

from openai import OpenAI

KEY = os.environ.get("BOTHWAYS_API_KEY", "none")


def post(address: str, value: dict[str, Any]) -> Any:
    """The answer to a request in JSON."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(address, json.dumps(value).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def main(address: str) -> None:
    client = OpenAI(base_url=f"{address}/v1", api_key=KEY)
    print([model.id for model in client.models.list()])
    for model, texts in (
        ("sentence", ["The cat sleeps.", "A kitten is asleep.", "The train is late."]),
        ("sentence-zh", ["猫在睡觉。", "小猫睡着了。", "火车晚点了。"]),
    ):
        first, *others = (row.embedding for row in client.embeddings.create(model=model, input=texts).data)
        for text, other in zip(texts[1:], others, strict=True):
            print(f"{sum(a * b for a, b in zip(first, other, strict=True)):.2f}  {texts[0]}  {text}")
    print(post(f"{address}/predict", {"model": "emotion", "text": "Thank you so much!"})["answer"])
    print(post(f"{address}/fill", {"model": "zh", "text": "不要[MASK]费粮食。", "top": 1})["answer"][0]["text"])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
