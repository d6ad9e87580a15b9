"""The one training loop and what it needs; it knows objectives and tasks only by their protocol."""
