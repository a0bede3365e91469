"""Incidents from the field, replayed: a small model whose tokens are right or wrong, under the layer contract."""
