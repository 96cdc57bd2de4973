"""The eye: a process outside of the job that reads the stacks of its threads."""
