"""Metrics of predictions against gold labels, confidence intervals and comparisons: no model, no files."""
