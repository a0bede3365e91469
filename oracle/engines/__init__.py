"""Real engines beside ours: their own code on our cases, and live layers recorded.

An engine's sources are enough: single functions are taken out of them, so nothing of the engine is started and nothing
of it is imported. What was taken out and what stands in for the rest is said in the adapter.
"""
