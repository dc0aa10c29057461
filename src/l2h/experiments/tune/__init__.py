"""Settings chosen by validation risk: what is tried, one trial, and the search over trials by Ray Tune."""
