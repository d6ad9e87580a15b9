"""Answers against gold: scores, intervals, comparisons. Numbers only, no model and no files."""
