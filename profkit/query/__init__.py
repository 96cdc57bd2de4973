"""Answer SQL queries about runs with DuckDB."""
