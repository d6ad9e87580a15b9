"""Checks of labelled data before training."""
