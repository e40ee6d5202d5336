"""Told: results that were measured of a deployment, or of its siblings, correct every other answer about it.

`answer` is `pipewave.published.answers.answer` for cases that are `told` something.
"""
