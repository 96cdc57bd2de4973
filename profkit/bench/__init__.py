"""Run a matrix of settings and compare the results."""
