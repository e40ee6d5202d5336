"""Latency of a launch under every configuration: launch counts, one law a configuration, corrections over sizes."""
