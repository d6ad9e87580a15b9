"""Sentence order prediction: two stretches that follow one another, in order or swapped? (ALBERT)

The head and the loss are those of `nsp`; the pairs are harder, because both stretches have the same topic.
"""

from bothways.pretraining.objectives.nsp import NextSentence


class SentenceOrder(NextSentence):
    """`sop`: label 0 means that A and B are in order. The sampler makes the pairs (rows.py)."""

    name = "sop"
