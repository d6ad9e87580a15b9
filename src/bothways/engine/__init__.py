"""Inference: sequences in, outputs in order."""
