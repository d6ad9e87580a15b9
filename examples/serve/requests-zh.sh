#!/bin/sh
# 先启动服务：bothways serve sentence-zh zh
at=${1:-http://127.0.0.1:8000}

curl -s "$at/v1/embeddings" -d '{"model": "sentence-zh", "input": ["猫在睡觉。", "小猫睡着了。"]}'
curl -s "$at/fill" -d '{"model": "zh", "text": "酒店的服务态度很[MASK]。", "top": 3}'
