"""One frozen value per screen, which the TUI and `--json` share."""
