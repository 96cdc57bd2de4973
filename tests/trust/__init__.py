"""What profkit promises whatever is done to it: the short versions; `make trust` runs the long ones, docs/reliability.md has the figures."""
