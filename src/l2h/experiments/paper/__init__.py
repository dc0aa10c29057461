"""The experiments of the paper, as ``l2h paper`` repeats them."""
