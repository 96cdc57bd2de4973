"""Other tools' traces and logs as runs of our contract, one file a format."""
