"""The report of the paper's experiments."""
