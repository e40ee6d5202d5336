"""Softmax attention over ragged batches."""
