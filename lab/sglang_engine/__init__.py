"""Whole steps of SGLang on a real GPU: `sglang.Engine` with random weights, its scheduler's batches timed one by one.

`python -m lab.sglang_engine --model Llama-3.1-8B --out rows/` times prefill and decode steps and writes them in
the form of `lab.vllm_engine`, so that both engines' rows are read by the same code. SGLang and torch are
imported inside functions only.
"""
