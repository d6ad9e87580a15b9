#!/bin/sh
# Requests to: bothways serve sentence en emotion answer
# With an API key add: -H "Authorization: Bearer $BOTHWAYS_API_KEY"
at=${1:-http://127.0.0.1:8000}

curl -s "$at/v1/models"
curl -s "$at/v1/embeddings" -d '{"model": "sentence", "input": ["The cat sleeps.", "A kitten is asleep."]}'
curl -s "$at/embed" -d '{"inputs": ["The cat sleeps."], "truncate": true}'
curl -s "$at/predict" -d '{"model": "emotion", "texts": ["Thank you so much!", "I am so sorry for your loss."]}'
curl -s "$at/predict" -d '{"model": "emotion", "text": "What a surprise!", "probabilities": true}'
curl -s "$at/predict" -d '{"model": "answer", "question": "Where do owls sleep?", "context": "By day owls sleep in hollow trees."}'
curl -s "$at/fill" -d '{"model": "en", "text": "Paris is the [MASK] of France.", "top": 3}'
curl -s "$at/metrics"
