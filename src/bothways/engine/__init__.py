"""Inference: token sequences in, results in input order."""
