"""Text files, tokenizers and vocabularies."""
