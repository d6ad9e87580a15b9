"""Sentence order prediction: are two consecutive texts in order or swapped? (ALBERT)

The head and the loss are those of `nsp`. The pairs are harder, because both texts have the same topic.
"""

from bothways.pretraining.objectives.nsp import NextSentencePrediction


class SentenceOrderPrediction(NextSentencePrediction):
    """`sop`: label 0 means that A and B are in order. The sampler makes the pairs."""

    name = "sop"
    excludes = ("nsp", "rtd")
    sampling = "order"
