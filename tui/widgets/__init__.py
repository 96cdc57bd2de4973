"""Tables, charts and frames that screens share."""
