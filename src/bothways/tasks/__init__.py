"""What a pretrained encoder is fine-tuned to do: one file for each task, one contract for all."""
