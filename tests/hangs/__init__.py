"""Tests of the hang doctor."""
