"""Processes: the supervisor, its workers, their settings, logs and metrics."""
