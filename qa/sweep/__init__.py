"""Answers held against their neighbours: versions, protocols, types and GPUs (`python -m qa.sweep`)."""
