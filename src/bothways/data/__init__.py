"""Labelled examples out of the files people have."""
