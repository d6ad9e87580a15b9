"""From raw text to a trained encoder: packing, rows, objectives."""
