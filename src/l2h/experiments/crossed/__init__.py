"""``l2h compare --crossed``: every loss with every net and every kind of training samples."""
