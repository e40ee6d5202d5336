"""Hyper-connections between layers."""
