"""Labelled data looked at before anything is trained."""
