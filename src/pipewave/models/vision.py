"""Vision towers that share a GPU with the language model: counted in memory, run for requests with images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pipewave.models.config_fields import Fields


@dataclass(frozen=True, slots=True)
class Tower:
    """A transformer over image patches and the projector behind it.

    `patch`: side of a patch in pixels; `merge`: patches along a side that become one token of the language model.
    `image`: side in pixels of the image that the tower is made for. `params`: all of its parameters.
    """

    hidden: int
    inter: int
    heads: int
    layers: int
    patch: int
    merge: int
    image: int
    params: int = 0
    gated: bool = False

    @property
    def patches(self) -> int:
        """Patches of one image of the tower's own size."""
        return max(self.image // self.patch, 1) ** 2

    @property
    def merged(self) -> int:
        """Width of the patches that become one token, side by side."""
        return self.hidden * self.merge**2

    @property
    def tokens(self) -> int:
        """Tokens one such image takes in the language model."""
        return max(self.patches // self.merge**2, 1)


def read_tower(section: Mapping[str, Any], outer: Fields, hidden: int) -> Tower:
    """The tower of a vision_config and its projector into a text model `hidden` wide; `outer` describes the latter."""
    fields = _named(section)
    kind = fields.text("model_type").removesuffix("_model").removesuffix("_vision")
    read = _sam_and_clip if isinstance(section.get("width"), Mapping) else _TOWERS.get(kind, _plain)
    return read(fields, outer, hidden)


# Names that towers use for the same widths.
_SAME = {
    "vt_hidden_size": "hidden_size", "vt_intermediate_size": "intermediate_size",
    "vt_num_attention_heads": "num_attention_heads", "vt_num_hidden_layers": "num_hidden_layers",
    "depth": "num_hidden_layers", "num_layers": "num_hidden_layers", "width": "hidden_size",
    "num_heads": "num_attention_heads", "layers": "num_hidden_layers", "attention_heads": "num_attention_heads",
}  # fmt: skip


def _named(section: Mapping[str, Any]) -> Fields:
    return Fields({_SAME.get(name, name): value for name, value in section.items()})


def _size(fields: Fields, name: str, default: int) -> int:
    value = fields.get(name, default)
    value = value[0] if isinstance(value, list) and value else value
    return Fields({name: value}).integer(name, high=1 << 20)


def _shape(fields: Fields, *, image: int, merge: int | None = None, patch: int = 14) -> Tower:
    """The widths of a tower, its parameters yet to be counted."""
    width = _size(fields, "hidden_size", 1152)
    inter = _size(fields, "intermediate_size", int(width * (fields.number("mlp_ratio") or 4)))
    heads, layers = _size(fields, "num_attention_heads", 16), _size(fields, "num_hidden_layers", 27)
    merge = _size(fields, "spatial_merge_size", 2) if merge is None else merge
    return Tower(width, inter, heads, layers, _size(fields, "patch_size", patch), merge, image)


def _image(fields: Fields, default: int) -> int:
    return _size(fields, "image_size", default)


def _counted(tower: Tower, before: int, layer: int, after: int, *, gated: bool = False) -> Tower:
    """The tower with its parameters: before its layers, of one layer, and after them, its projector included."""
    return replace(tower, params=before + tower.layers * layer + after, gated=gated)


def _patches(tower: Tower, frames: int = 1) -> int:
    """The map of patches, without bias."""
    return 3 * frames * tower.patch**2 * tower.hidden


def _frames(fields: Fields) -> int:
    return _size(fields, "temporal_patch_size", 2)


def _attention(width: int, inner: int = 0, *, biased: bool = True) -> int:
    """Parameters of q, k, v and the output map."""
    inner = inner or width
    return 4 * width * inner + (3 * inner + width if biased else 0)


def _block(width: int, inter: int, *, maps: int = 2, biased: bool = True) -> int:
    """Parameters of a dense block of two or three maps."""
    return maps * width * inter + ((maps - 1) * inter + width if biased else 0)


def _layer(tower: Tower, *, maps: int = 2, biased: bool = True, norms: int = 4) -> int:
    """Attention, a dense block, and norms of so many widths: two with biases, unless said otherwise."""
    width = tower.hidden
    return _attention(width, biased=biased) + _block(width, tower.inter, maps=maps, biased=biased) + norms * width


def _two_maps(tower: Tower, out: int) -> int:
    """Two maps with biases from merged patches to `out`."""
    merged = tower.merged
    return merged * merged + merged + merged * out + out


def _plain(fields: Fields, _outer: Fields, hidden: int) -> Tower:
    """A tower of which no more is known than its widths: two norms a layer, biases, a projector of two maps."""
    tower = _shape(fields, image=_image(fields, 448))
    return _counted(tower, _patches(tower) + tower.hidden, _layer(tower), tower.merged * hidden + hidden * hidden)


def _siglip(fields: Fields, _outer: Fields, hidden: int) -> Tower:
    """SigLIP and Gemma 3's projector."""
    tower = _shape(fields, merge=1, image=_image(fields, 896))
    width, side = tower.hidden, tower.image // tower.patch
    found = _counted(tower, _patches(tower) + width + side**2 * width, _layer(tower), (3 + hidden) * width)
    return replace(found, merge=max(side // 16, 1))  # pooled to 16 × 16 tokens


PIXTRAL = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}


def _pixtral(fields: Fields, outer: Fields, hidden: int) -> Tower:
    """Pixtral, and Mistral 3's projector, which merges patches before two matrices."""
    fields = Fields(PIXTRAL | dict(fields.raw))
    tower = _shape(fields, merge=outer.integer("spatial_merge_size", 2), image=_image(fields, 1540))
    width = tower.hidden
    projector = tower.merged * width + width + (width + hidden) * hidden
    projector += 2 * hidden if outer.flag("multimodal_projector_bias") else 0
    layer = _layer(tower, maps=3, biased=False, norms=2)
    return _counted(tower, _patches(tower) + width, layer, projector, gated=True)


def _qwen(fields: Fields, _outer: Fields, hidden: int) -> Tower:
    """Qwen3-VL and Qwen3.5: learned positions, mergers after the last layer and after chosen ones."""
    tower = _shape(fields, image=768, patch=16)
    width, deep = tower.hidden, len(fields.ints("deepstack_visual_indexes"))
    merger = _two_maps(tower, _size(fields, "out_hidden_size", hidden))
    before = _patches(tower, _frames(fields)) + width + _size(fields, "num_position_embeddings", 2304) * width
    return _counted(tower, before, _layer(tower), merger + 2 * width + deep * (merger + 2 * tower.merged))


def _qwen2(fields: Fields, _outer: Fields, hidden: int) -> Tower:
    """Qwen2-VL (LayerNorms, two maps) and Qwen2.5-VL (RMSNorms, three maps with biases)."""
    newer = fields.get("out_hidden_size") is not None
    tower = _shape(fields, image=784)
    if not newer and fields.get("embed_dim") is not None:  # here hidden_size is the text model's
        width = _size(fields, "embed_dim", 1280)
        tower = replace(tower, hidden=width, inter=int(width * (fields.number("mlp_ratio") or 4)))
    maps, norm = (3, 1) if newer else (2, 2)
    merger = _two_maps(tower, _size(fields, "out_hidden_size", hidden))
    layer = _layer(tower, maps=maps, norms=2 * norm)
    return _counted(tower, _patches(tower, _frames(fields)), layer, norm * tower.hidden + merger, gated=newer)


def _moonvit(fields: Fields, _outer: Fields, hidden: int) -> Tower:
    """MoonViT of Kimi: learned positions of a grid, q, k and v in one map, a patch merger of two maps."""
    tower = _shape(fields, merge=2, image=896)
    width, side = tower.hidden, _size(fields, "init_pos_emb_height", 64)
    inner, biased = _size(fields, "qkv_hidden_size", width), fields.flag("linear_bias", True)
    norm = 1 if fields.text("norm_type", "layernorm") == "rmsnorm" else 2
    layer = _attention(width, inner, biased=biased) + _block(width, tower.inter, biased=biased) + 2 * norm * width
    before = _patches(tower) + width * biased + side**2 * width
    return _counted(tower, before, layer, (norm + 2) * width + _two_maps(tower, hidden))


def _gemma4(fields: Fields, outer: Fields, hidden: int) -> Tower:
    """Gemma 4: gated blocks, four norms a layer, positions of rows and of columns."""
    side = _size(fields, "pooling_kernel_size", 3)
    tower = _shape(fields, merge=side, image=16, patch=16)
    tokens = outer.integer("vision_soft_tokens_per_image", 280)
    tower = replace(tower, image=tower.patch * round((tokens * side**2) ** 0.5))
    width, dim = tower.hidden, _size(fields, "head_dim", 72)
    layer = _attention(width, tower.heads * dim, biased=False) + 3 * width * tower.inter + 4 * width + 2 * dim
    before = _patches(tower) + 2 * _size(fields, "position_embedding_size", 10240) * width
    return _counted(tower, before, layer, width * hidden, gated=True)


def _llama4(fields: Fields, _outer: Fields, hidden: int) -> Tower:
    """Llama 4: a class token, learned positions, pixels shuffled two by two, an adapter and one projector map."""
    tower = _shape(fields, merge=2, image=_image(fields, 448))
    wide, out = _size(fields, "projector_input_dim", 4096), _size(fields, "projector_output_dim", 4096)
    adapter = wide * tower.inter + out * wide + hidden * _size(fields, "vision_output_dim", out)
    return _counted(tower, _patches(tower) + (tower.patches + 6) * tower.hidden, _layer(tower), adapter)


def _glm4v(fields: Fields, _outer: Fields, hidden: int) -> Tower:
    """GLM-4V: gated blocks, a convolution that merges patches, a gated merger."""
    tower = _shape(fields, image=_image(fields, 336))
    width, out = tower.hidden, _size(fields, "out_hidden_size", hidden)
    tower, merger = replace(tower, inter=out), tower.inter  # its blocks are as wide as the text, its merger wider
    layer = _layer(tower, maps=3, biased=False, norms=2) + (4 * width if fields.flag("attention_bias") else 0)
    before = _patches(tower, _frames(fields)) + width + tower.patches * width + 2 * width
    return _counted(tower, before, layer, tower.merged * out + out * (out + 3 + 3 * merger), gated=True)


def _glm_ocr(fields: Fields, outer: Fields, hidden: int) -> Tower:
    """GLM-OCR: GLM-4V's without learned positions; its blocks are as wide as they say, with biases and q/k norms."""
    tower = _shape(fields, image=_image(fields, 336))
    width, out = tower.hidden, _size(fields, "out_hidden_size", hidden)
    merger = out * outer.integer("in_channels", 3)
    layer = _layer(tower, maps=3, biased=fields.flag("attention_bias"), norms=2) + 2 * (width // tower.heads)
    before = _patches(tower, _frames(fields)) + width
    return _counted(tower, before, layer, width + tower.merged * out + out * (out + 3 + 3 * merger), gated=True)


def _grouped(fields: Fields, _outer: Fields, hidden: int) -> Tower:
    """EXAONE 4.5: Qwen2.5-VL's blocks with grouped keys and values."""
    tower = _shape(fields, image=784)
    width = tower.hidden
    rows = width + 2 * _size(fields, "num_key_value_heads", tower.heads) * (width // tower.heads)
    layer = rows * width + rows + width * width + width + _block(width, tower.inter, maps=3) + 2 * width
    merger = _two_maps(tower, _size(fields, "out_hidden_size", hidden))
    return _counted(tower, _patches(tower, _frames(fields)), layer, width + merger, gated=True)


def _mllama(fields: Fields, _outer: Fields, hidden: int) -> Tower:
    """Llama 3.2 Vision: local and gated global layers, positions of tiles, outputs of several layers side by side."""
    tower = _shape(fields, merge=1, image=_image(fields, 448))
    tower = replace(tower, layers=tower.layers + _size(fields, "num_global_layers", 8))
    width, tiles = tower.hidden, _size(fields, "max_num_tiles", 4)
    ratios = len(fields.get("supported_aspect_ratios") or ()) + 1
    positions = (tower.patches + 1) * width
    before = _patches(tower) + width + positions + ratios * tiles * (positions + 2 * width)
    layer = _attention(width, biased=False) + _block(width, tower.inter) + 4 * width
    projector = _size(fields, "vision_output_dim", 6 * width) * hidden + hidden
    return _counted(tower, before, layer, 4 * width + projector)


def _dots(fields: Fields, _outer: Fields, hidden: int) -> Tower:
    """dots.ocr: gated blocks without biases, a merger of two maps behind a norm."""
    tower = replace(_shape(fields, image=784), hidden=_size(fields, "embed_dim", 1536))
    before, layer = _patches(tower) + 2 * tower.hidden, _layer(tower, maps=3, biased=False, norms=2)
    return _counted(tower, before, layer, 3 * tower.hidden + _two_maps(tower, hidden), gated=True)


WINDOW = 14  # patches along a side of SAM's windows


def _sam_and_clip(fields: Fields, _outer: Fields, hidden: int) -> Tower:
    """DeepSeek-OCR: SAM on all patches, convolutions that leave one in sixteen, CLIP on those, both into one map."""
    sections = (_named(fields.raw["hidden_size"][name]) for name in ("sam_vit_b", "clip-l-14-224"))
    of_sam, of_clip = sections
    sam = _shape(of_sam, merge=4, image=_image(fields, 1024), patch=16)
    clip = _shape(of_clip, merge=1, image=_image(of_clip, 224))
    embedded = _patches(sam) + (1 + sam.patches) * sam.hidden + _patches(clip)
    # Relative positions of rows and columns, a head wide: of the image in some layers, of windows in others.
    whole, side = len(of_sam.ints("global_attn_indexes")), 2 * sam.image // sam.patch - 1
    relative = 2 * (sam.hidden // sam.heads) * (whole * side + (sam.layers - whole) * (2 * WINDOW - 1))
    # SAM's neck and the convolutions behind it, three by three but for the first.
    steps = (256, *(of_sam.ints("downsample_channels") or (512, 1024)))
    narrowed = sam.hidden * steps[0] + 9 * (steps[0] ** 2 + sum(a * b for a, b in pairwise(steps)))
    ends = 4 * steps[0] + (clip.patches + 6) * clip.hidden  # norms; positions, class token and norms of CLIP
    joined = (steps[-1] + clip.hidden + 3) * hidden
    after = relative + clip.layers * _layer(clip) + narrowed + ends + joined
    return _counted(sam, embedded, _layer(sam), after)


SEEN_AT_ONCE = 32_768  # positions of PaddleOCR-VL's packed images


def _paddleocr(fields: Fields, _outer: Fields, hidden: int) -> Tower:
    """PaddleOCR-VL: SigLIP with positions of packed images and its pooling head; a projector that merges patches."""
    tower = _shape(fields, image=_image(fields, 384))
    width, positions = tower.hidden, (tower.image // tower.patch) ** 2 + SEEN_AT_ONCE
    head = _layer(tower, norms=3)
    return _counted(
        tower, _patches(tower) + (1 + positions) * width, _layer(tower), 4 * width + head + _two_maps(tower, hidden)
    )


def _ovis(fields: Fields, outer: Fields, hidden: int) -> Tower:
    """Ovis 2.5: SigLIP 2 behind which merged patches become probabilities of visual words, which have embeddings."""
    words, side = outer.integer("visual_vocab_size", 65_536), _image(fields, 512)
    tower = _shape(fields, merge=_size(fields, "hidden_stride", 2), image=side, patch=16)
    marks = 4  # words that stand for the begin and end of images and videos have no score
    table = words * hidden + (words - marks) * (tower.merged + 2)
    before = _patches(tower) + (1 + (side // tower.patch) ** 2) * tower.hidden
    return _counted(tower, before, _layer(tower), 2 * tower.hidden + table)


_TOWERS: dict[str, Callable[[Fields, Fields, int], Tower]] = {
    "siglip": _siglip,
    "pixtral": _pixtral,
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen3_omni_moe_vision_encoder"), _qwen),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni_vision_encoder"), _qwen2),
    **dict.fromkeys(("moonvit", "kimi_k25", "kimi_k3", "kimi_vl"), _moonvit),
    "gemma4": _gemma4,
    "llama4": _llama4,
    **dict.fromkeys(("glm4v", "glm4v_moe"), _glm4v),
    "glm_ocr": _glm_ocr,
    "exaone4_5": _grouped,
    "mllama": _mllama,
    **dict.fromkeys(("dots_ocr", "dots_vit"), _dots),
    "paddleocr_vl": _paddleocr,
    "siglip2_navit": _ovis,
}
