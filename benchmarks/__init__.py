"""Timing of implementations and of the oracle itself; refuses to time what fails its check."""
