"""The layer under test: its contract at run time, a rig that drives it, and layers that are wrong in one way."""
