"""data2vec for text: RoBERTa under other tensor names, pretrained by predicting the hidden states of masked tokens."""

from dataclasses import replace

from bothways.model.families import roberta

FAMILY = replace(roberta.family("data2vec-text", "Data2VecText"), prefix="data2vec_text.")
