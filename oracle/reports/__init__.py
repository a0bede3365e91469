"""Verdicts as people and machines read them: table and failure blocks, live progress, JSON, JUnit."""
