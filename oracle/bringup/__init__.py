"""A new model from its config: what was read and why, what is ambiguous, what it costs, and each stage checked."""
