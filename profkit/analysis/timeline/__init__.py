"""The timeline of one run, ready to be drawn."""
