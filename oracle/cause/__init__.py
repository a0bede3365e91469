"""What the ways from a failure to its cause share: what a failure is, and who is asked for it again."""
