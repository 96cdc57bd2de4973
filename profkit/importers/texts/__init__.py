"""Checks what a text about runs states against the commands in it and against their logs."""
