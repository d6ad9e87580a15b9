"""The defaults of `ask`, in a file that does not import torch, so that the command line's help stays fast."""

PASSAGES = 100
"""Passages that the model reads."""
