"""Choosing a configuration: short lists by size cell, evaluated in microseconds."""
