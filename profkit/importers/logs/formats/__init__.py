"""Grammars of training logs, one module per format."""
