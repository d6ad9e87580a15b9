"""Readers of labelled examples: tables, JSON, CoNLL, SQuAD, multiple choice."""
