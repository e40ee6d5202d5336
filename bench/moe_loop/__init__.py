"""The loop on the fused MoE layer: predict, flag what lies above its ceiling, tune, change the kernel, measure again.

`shapes` draws the list; `device` times it on a GPU beside vLLM; `report` joins the times with the predicted ceilings.
"""
