"""Experiments: plans over data sets, and comparisons of methods over seeds and prices."""
