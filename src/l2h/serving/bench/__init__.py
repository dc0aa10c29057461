"""Load: what ``l2h bench`` sends and measures."""
