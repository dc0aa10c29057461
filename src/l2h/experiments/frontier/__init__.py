"""``l2h frontier``: what a rejector is worth against what it costs the device, over budgets and seeds."""
