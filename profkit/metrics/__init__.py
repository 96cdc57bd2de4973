"""Hand the figures of runs to Prometheus, OpenTelemetry and experiment trackers."""
