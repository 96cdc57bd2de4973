"""One module per format of training logs."""
