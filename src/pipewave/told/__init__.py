"""Benchmark results of a deployment, or of its siblings, correct other answers about it.

`answer` is `pipewave.published.answers.answer` for cases that are `told` something.
"""
