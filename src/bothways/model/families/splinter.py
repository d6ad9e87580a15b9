"""Splinter: BERT's body, pretrained by selecting recurring spans. Its own span selection head is not read."""

from dataclasses import replace

from bothways.model.families import bert

FAMILY = replace(
    bert.FAMILY,
    name="splinter",
    prefix="splinter.",
    heads={},
    architectures=(("SplinterModel", frozenset()),),
    unread_tensors={"splinter_qass.*": "its span selection head"},
    tied={},
)
