"""The model behind the server: loading and exchanging it, and batching the requests that reach it."""
