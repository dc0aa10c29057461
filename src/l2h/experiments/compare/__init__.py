"""``l2h compare``: methods side by side, over seeds."""
