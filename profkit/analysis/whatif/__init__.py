"""Replay of hybrid-parallel steps: how long they take if some operations take another time."""
