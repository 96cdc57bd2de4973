"""Replay of recorded steps with other durations of some parts."""
