"""Sentence order prediction: two stretches that follow one another, in order or swapped? (ALBERT)

The head and the loss are those of `nsp`; the pairs are harder, because both stretches have the same topic.
"""

from bothways.pretraining.objectives.nsp import NextSentencePrediction


class SentenceOrderPrediction(NextSentencePrediction):
    """`sop`: label 0 means that A and B are in order. The sampler makes the pairs."""

    name = "sop"
    excludes = ("nsp", "rtd")
    sampling = "order"
