"""Routed experts of a layer."""
