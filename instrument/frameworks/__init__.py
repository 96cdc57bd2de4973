"""Hooks of each framework, one folder per framework."""
