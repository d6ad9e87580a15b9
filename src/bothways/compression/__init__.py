"""From a fine-tuned model to the smallest one that keeps its score."""
