"""HTTP: connections, routes, and one inference request from the first byte to the last."""
