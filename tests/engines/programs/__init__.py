"""Programs that run an engine's own modules in one process, for capture to watch."""
