"""Search, similar pairs, groups and hard negatives, from vectors."""
