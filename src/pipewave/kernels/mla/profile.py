"""How profiles show latent attention: names of kernels; sizes come from the model."""

from __future__ import annotations

from pipewave.kernels.faces import KernelName, Profile

NAMES = (
    KernelName(50, r"flash_fwd_mla_combine|mla_combine|MLA.*[Rr]eduction|mla.*_stage2", "mla_combine", "", "previous"),
    KernelName(50, r"get_mla_metadata", "mla_prepare", "", "next"),
    KernelName(
        50,
        r"splitkv_mla|flash_mla|FlashMLA|BatchMLA|cutlass_mla|Sm100FmhaMla|mla_decode|fmhaSm100.*(Mla|HQk576)",
        "mla",
        "flashmla",
    ),
)
PROFILE = Profile(NAMES, anchors=("mla",))
