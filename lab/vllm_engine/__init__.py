"""Whole steps of a serving engine on a real GPU: vLLM with random weights, driven one step at a time in one process.

`python -m lab.vllm_engine --model Llama-3.1-8B --tp 1 --out rows/` times prefill, decode and mixed steps,
notes what the engine logs of its memory, and with `--trace` records profiler traces of one prefill and a few decode
steps. vLLM and torch are imported inside functions only.
"""
