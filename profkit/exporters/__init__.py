"""Exporters of runs to the formats of other tools, one module per format."""
