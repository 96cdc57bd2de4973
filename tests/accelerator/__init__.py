"""A simulated accelerator, on which profkit's own hooks, recorder and files run in tests."""
