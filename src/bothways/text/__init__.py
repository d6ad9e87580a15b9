"""Text in: files, vocabularies, tokens."""
