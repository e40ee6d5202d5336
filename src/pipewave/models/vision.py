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


def _shape(fields: Fields, *, merge: int, image: int, patch: int = 14) -> Tower:
    """The widths of a tower, its parameters yet to be counted."""
    width = _size(fields, "hidden_size", 1152)
    inter = _size(fields, "intermediate_size", int(width * (fields.number("mlp_ratio") or 4)))
    heads, layers = _size(fields, "num_attention_heads", 16), _size(fields, "num_hidden_layers", 27)
    return Tower(width, inter, heads, layers, _size(fields, "patch_size", patch), merge, image)


def _attention(width: int, inner: int = 0, *, biased: bool = True) -> int:
    """Parameters of q, k, v and the output map."""
    inner = inner or width
    return 4 * width * inner + (3 * inner + width if biased else 0)


def _block(width: int, inter: int, *, maps: int = 2, biased: bool = True) -> int:
    """Parameters of a dense block of two or three maps."""
    return maps * width * inter + ((maps - 1) * inter + width if biased else 0)


def _plain(fields: Fields, _outer: Fields, hidden: int) -> Tower:
    """A tower of which no more is known than its widths: two norms a layer, biases, a projector of two maps."""
    image = _size(fields, "image_size", 448)
    shape = _shape(fields, merge=_size(fields, "spatial_merge_size", 2), image=image)
    width, merged = shape.hidden, shape.hidden * shape.merge**2
    layer = _attention(width) + _block(width, shape.inter) + 4 * width
    patches = 3 * shape.patch**2 * width + width
    return replace(shape, params=patches + shape.layers * layer + merged * hidden + hidden * hidden)


def _siglip(fields: Fields, _outer: Fields, hidden: int) -> Tower:
    """SigLIP and Gemma 3's projector."""
    shape = _shape(fields, merge=1, image=_size(fields, "image_size", 896))
    width, patch = shape.hidden, shape.patch
    embed = 3 * patch**2 * width + width + (shape.image // patch) ** 2 * width
    layer = _attention(width) + _block(width, shape.inter) + 4 * width
    merge = max(shape.image // patch // 16, 1)  # pooled to 16 × 16 tokens
    params = embed + shape.layers * layer + 2 * width + width * hidden + width
    return replace(shape, merge=merge, params=params)


PIXTRAL = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}


def _pixtral(fields: Fields, outer: Fields, hidden: int) -> Tower:
    """Pixtral, and Mistral 3's projector, which merges patches before two matrices."""
    fields = Fields(PIXTRAL | dict(fields.raw))
    merge = outer.integer("spatial_merge_size", 2)
    shape = _shape(fields, merge=merge, image=_size(fields, "image_size", 1540))
    width = shape.hidden
    layer = _attention(width, biased=False) + _block(width, shape.inter, maps=3, biased=False) + 2 * width
    embed = 3 * shape.patch**2 * width + width
    merged = merge**2 * width**2 + width
    biases = 2 * hidden if outer.flag("multimodal_projector_bias") else 0
    params = embed + shape.layers * layer + merged + (width + hidden) * hidden + biases
    return replace(shape, params=params, gated=True)


def _qwen(fields: Fields, _outer: Fields, hidden: int) -> Tower:
    """Qwen3-VL and Qwen3.5: learned positions, mergers after the last layer and after chosen ones."""
    merge, image = _size(fields, "spatial_merge_size", 2), 768
    shape = _shape(fields, merge=merge, image=image, patch=16)
    width, out = shape.hidden, _size(fields, "out_hidden_size", hidden)
    merged, deep = width * merge**2, fields.ints("deepstack_visual_indexes")
    frames = _size(fields, "temporal_patch_size", 2)
    embed = 3 * frames * shape.patch**2 * width + width + _size(fields, "num_position_embeddings", 2304) * width
    layer = _attention(width) + _block(width, shape.inter) + 4 * width
    merger = merged * merged + merged + merged * out + out
    params = embed + shape.layers * layer + merger + 2 * width + len(deep) * (merger + 2 * merged)
    return replace(shape, params=params)


def _qwen2(fields: Fields, _outer: Fields, hidden: int) -> Tower:
    """Qwen2-VL (LayerNorms, two maps) and Qwen2.5-VL (RMSNorms, three maps with biases)."""
    newer = fields.get("out_hidden_size") is not None
    merge = _size(fields, "spatial_merge_size", 2)
    shape = _shape(fields, merge=merge, image=784, patch=14)
    out = _size(fields, "out_hidden_size", hidden)
    if not newer and fields.get("embed_dim") is not None:  # here hidden_size is the text model's
        shape = replace(shape, hidden=_size(fields, "embed_dim", 1280))
        shape = replace(shape, inter=int(shape.hidden * (fields.number("mlp_ratio") or 4)))
    width, maps, norm = shape.hidden, 3 if newer else 2, 1 if newer else 2
    layer = _attention(width) + _block(width, shape.inter, maps=maps) + 2 * norm * width
    merged = width * merge**2
    embed = 3 * _size(fields, "temporal_patch_size", 2) * shape.patch**2 * width
    params = embed + shape.layers * layer + norm * width + merged * merged + merged + merged * out + out
    return replace(shape, params=params, gated=newer)


def _moonvit(fields: Fields, _outer: Fields, hidden: int) -> Tower:
    """MoonViT of Kimi: learned positions of a grid, q, k and v in one map, a patch merger of two maps."""
    shape = _shape(fields, merge=2, image=896)
    width, side = shape.hidden, _size(fields, "init_pos_emb_height", 64)
    inner, biased = _size(fields, "qkv_hidden_size", width), fields.flag("linear_bias", True)
    norm = 1 if fields.text("norm_type", "layernorm") == "rmsnorm" else 2
    embed = 3 * shape.patch**2 * width + width * biased + side**2 * width
    layer = _attention(width, inner, biased=biased) + _block(width, shape.inter, biased=biased) + 2 * norm * width
    merged = 4 * width
    projector = merged * merged + merged + merged * hidden + hidden + 2 * width
    return replace(shape, params=embed + shape.layers * layer + norm * width + projector)


def _gemma4(fields: Fields, outer: Fields, hidden: int) -> Tower:
    """Gemma 4: gated blocks, four norms a layer, positions of rows and of columns."""
    side = _size(fields, "pooling_kernel_size", 3)
    tokens = outer.integer("vision_soft_tokens_per_image", 280)
    shape = _shape(fields, merge=side, image=16, patch=16)
    shape = replace(shape, image=shape.patch * round((tokens * side**2) ** 0.5))
    width, dim = shape.hidden, _size(fields, "head_dim", 72)
    layer = _attention(width, shape.heads * dim, biased=False) + 3 * width * shape.inter + 4 * width + 2 * dim
    embed = 3 * shape.patch**2 * width + 2 * _size(fields, "position_embedding_size", 10240) * width
    return replace(shape, params=embed + shape.layers * layer + width * hidden, gated=True)


def _llama4(fields: Fields, _outer: Fields, hidden: int) -> Tower:
    """Llama 4: a class token, learned positions, pixels shuffled two by two, an adapter and one projector map."""
    shape = _shape(fields, merge=2, image=_size(fields, "image_size", 448))
    width, inter = shape.hidden, shape.inter
    wide, out = _size(fields, "projector_input_dim", 4096), _size(fields, "projector_output_dim", 4096)
    embed = 3 * shape.patch**2 * width + width + (shape.patches + 1) * width + 4 * width
    layer = _attention(width) + _block(width, inter) + 4 * width
    adapter = wide * inter + out * wide + hidden * _size(fields, "vision_output_dim", out)
    return replace(shape, params=embed + shape.layers * layer + adapter)


def _glm4v(fields: Fields, _outer: Fields, hidden: int) -> Tower:
    """GLM-4V: gated blocks, a convolution that merges patches, a gated merger."""
    merge = _size(fields, "spatial_merge_size", 2)
    shape = _shape(fields, merge=merge, image=_size(fields, "image_size", 336))
    width, out = shape.hidden, _size(fields, "out_hidden_size", hidden)
    shape, merger = replace(shape, inter=out), shape.inter  # its blocks are as wide as the text, its merger wider
    frames = _size(fields, "temporal_patch_size", 2)
    embed = 3 * frames * shape.patch**2 * width + width + shape.patches * width + 2 * width
    layer = _attention(width, biased=fields.flag("attention_bias")) + 3 * width * shape.inter + 2 * width
    down = width * merge**2 * out + out
    params = embed + shape.layers * layer + down + out * out + 2 * out + 3 * out * merger
    return replace(shape, params=params, gated=True)


def _glm_ocr(fields: Fields, outer: Fields, hidden: int) -> Tower:
    """GLM-OCR: GLM-4V's without learned positions; its blocks are as wide as they say, with biases and q/k norms."""
    merge = _size(fields, "spatial_merge_size", 2)
    shape = _shape(fields, merge=merge, image=_size(fields, "image_size", 336))
    width, out = shape.hidden, _size(fields, "out_hidden_size", hidden)
    biased, merger = fields.flag("attention_bias"), out * (outer.integer("in_channels", 3))
    embed = 3 * _size(fields, "temporal_patch_size", 2) * shape.patch**2 * width + width
    layer = _attention(width, biased=biased) + _block(width, shape.inter, maps=3, biased=biased) + 2 * width
    layer += 2 * (width // shape.heads)
    down = width * merge**2 * out + out
    params = embed + shape.layers * layer + width + down + out * out + 2 * out + 3 * out * merger
    return replace(shape, params=params, gated=True)


def _grouped(fields: Fields, _outer: Fields, hidden: int) -> Tower:
    """EXAONE 4.5: Qwen2.5-VL's blocks with grouped keys and values."""
    merge = _size(fields, "spatial_merge_size", 2)
    shape = _shape(fields, merge=merge, image=784)
    width, out = shape.hidden, _size(fields, "out_hidden_size", hidden)
    rows = width + 2 * _size(fields, "num_key_value_heads", shape.heads) * (width // shape.heads)
    layer = rows * width + rows + width * width + width + _block(width, shape.inter, maps=3) + 2 * width
    merged = width * merge**2
    embed = 3 * _size(fields, "temporal_patch_size", 2) * shape.patch**2 * width
    params = embed + shape.layers * layer + width + merged * merged + merged + merged * out + out
    return replace(shape, params=params, gated=True)


def _mllama(fields: Fields, _outer: Fields, hidden: int) -> Tower:
    """Llama 3.2 Vision: local and gated global layers, positions of tiles, outputs of several layers side by side."""
    shape = _shape(fields, merge=1, image=_size(fields, "image_size", 448))
    width, tiles = shape.hidden, _size(fields, "max_num_tiles", 4)
    layers = shape.layers + _size(fields, "num_global_layers", 8)
    ratios = len(fields.get("supported_aspect_ratios") or ()) + 1
    positions = (shape.patches + 1) * width
    embed = 3 * shape.patch**2 * width + width + positions + ratios * tiles * (positions + 2 * width)
    layer = _attention(width, biased=False) + _block(width, shape.inter) + 4 * width
    projector = _size(fields, "vision_output_dim", 6 * width) * hidden + hidden
    return replace(shape, layers=layers, params=embed + layers * layer + 4 * width + projector)


def _dots(fields: Fields, _outer: Fields, hidden: int) -> Tower:
    """dots.ocr: gated blocks without biases, a merger of two maps behind a norm."""
    width = _size(fields, "embed_dim", 1536)
    merge = _size(fields, "spatial_merge_size", 2)
    shape = replace(_shape(fields, merge=merge, image=784), hidden=width)
    layer = _attention(width, biased=False) + _block(width, shape.inter, maps=3, biased=False) + 2 * width
    merged = width * merge**2
    merger = 2 * width + merged * merged + merged + merged * hidden + hidden
    embed = 3 * shape.patch**2 * width + 2 * width
    return replace(shape, params=embed + shape.layers * layer + width + merger, gated=True)


WINDOW = 14  # patches along a side of SAM's windows


def _sam_and_clip(fields: Fields, _outer: Fields, hidden: int) -> Tower:
    """DeepSeek-OCR: SAM on all patches, convolutions that leave one in sixteen, CLIP on those, both into one map."""
    sam, clip = (_named(fields.raw["hidden_size"][name]) for name in ("sam_vit_b", "clip-l-14-224"))
    first = _shape(sam, merge=4, image=_size(fields, "image_size", 1024), patch=16)
    second = _shape(clip, merge=1, image=_size(clip, "image_size", 224))
    steps = (256, *(sam.ints("downsample_channels") or (512, 1024)))
    ends = 4 * steps[0] + (second.patches + 6) * second.hidden  # norms; positions, class token and norms of CLIP
    joined = (steps[-1] + second.hidden + 3) * hidden
    blocks = _blocks(first) + _relative(first, len(sam.ints("global_attn_indexes"))) + _blocks(second)
    return replace(first, params=blocks + _embedded(first, second) + _narrowed(first.hidden, steps) + ends + joined)


def _blocks(tower: Tower) -> int:
    """Parameters of plain layers with two norms."""
    return tower.layers * (_attention(tower.hidden) + _block(tower.hidden, tower.inter) + 4 * tower.hidden)


def _relative(sam: Tower, whole: int) -> int:
    """Relative positions of rows and columns, a head wide: of the image in some layers, of windows in others."""
    side, near = 2 * sam.image // sam.patch - 1, 2 * WINDOW - 1
    return 2 * (sam.hidden // sam.heads) * (whole * side + (sam.layers - whole) * near)


def _embedded(sam: Tower, clip: Tower) -> int:
    """Patches of both, biases and positions of the first."""
    return (3 * sam.patch**2 + 1 + sam.patches) * sam.hidden + 3 * clip.patch**2 * clip.hidden


def _narrowed(width: int, steps: tuple[int, ...]) -> int:
    """SAM's neck and the convolutions behind it, three by three but for the first."""
    return width * steps[0] + 9 * (steps[0] ** 2 + sum(a * b for a, b in pairwise(steps)))


SEEN_AT_ONCE = 32_768  # positions of PaddleOCR-VL's packed images


def _paddleocr(fields: Fields, _outer: Fields, hidden: int) -> Tower:
    """PaddleOCR-VL: SigLIP with positions of packed images and its pooling head; a projector that merges patches."""
    shape = _shape(fields, merge=_size(fields, "spatial_merge_size", 2), image=_size(fields, "image_size", 384))
    width, block = shape.hidden, _block(shape.hidden, shape.inter)
    embed = 3 * shape.patch**2 * width + width + ((shape.image // shape.patch) ** 2 + SEEN_AT_ONCE) * width
    layer = _attention(width) + block + 4 * width
    head = _attention(width) + block + 3 * width
    merged = width * shape.merge**2
    projector = 2 * width + merged * merged + merged + merged * hidden + hidden
    return replace(shape, params=embed + shape.layers * layer + 2 * width + head + projector)


def _ovis(fields: Fields, outer: Fields, hidden: int) -> Tower:
    """Ovis 2.5: SigLIP 2 behind which merged patches become probabilities of visual words, which have embeddings."""
    words, side = outer.integer("visual_vocab_size", 65_536), _size(fields, "image_size", 512)
    shape = _shape(fields, merge=_size(fields, "hidden_stride", 2), image=side, patch=16)
    width = shape.hidden
    embed = 3 * shape.patch**2 * width + width + (side // shape.patch) ** 2 * width
    layer = _attention(width) + _block(width, shape.inter) + 4 * width
    marks = 4  # words that stand for the begin and end of images and videos have no score
    table = words * hidden + (words - marks) * (width * shape.merge**2 + 2)
    return replace(shape, params=embed + shape.layers * layer + 2 * width + table)


_TOWERS: dict[str, Callable[[Fields, Fields, int], Tower]] = {
    "siglip": _siglip,
    "pixtral": _pixtral,
    "qwen3_vl": _qwen,
    "qwen3_vl_moe": _qwen,
    "qwen3_5": _qwen,
    "qwen3_5_moe": _qwen,
    "qwen2_vl": _qwen2,
    "qwen2_5_vl": _qwen2,
    "moonvit": _moonvit,
    "kimi_k25": _moonvit,
    "kimi_k3": _moonvit,
    "kimi_vl": _moonvit,
    "gemma4": _gemma4,
    "llama4": _llama4,
    "glm4v": _glm4v,
    "glm4v_moe": _glm4v,
    "glm_ocr": _glm_ocr,
    "qwen2_5_omni_vision_encoder": _qwen2,
    "qwen3_omni_moe_vision_encoder": _qwen,
    "exaone4_5": _grouped,
    "mllama": _mllama,
    "dots_ocr": _dots,
    "dots_vit": _dots,
    "paddleocr_vl": _paddleocr,
    "siglip2_navit": _ovis,
}
