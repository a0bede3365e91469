"""``attnoracle bench``: implementations timed on the same inputs in the same run, after each has passed its check."""
