"""Routes of a sparse-MLA layer: explained for a batch, mapped over lengths, compared, and audited over a table."""
