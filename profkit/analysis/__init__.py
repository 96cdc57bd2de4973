"""From tables to values: pure functions over Arrow tables and numpy arrays."""
