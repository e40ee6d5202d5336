"""The published PipeWeave estimator and its baselines, trained by our pipeline on the published rows.

`python -m paper.training --data DIR --out DIR` needs torch and scikit-learn on a CPU; see docs/paper.md.
"""
