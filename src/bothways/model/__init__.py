"""The encoder, its heads, and the folders they live in. Knows nothing of data or training."""
