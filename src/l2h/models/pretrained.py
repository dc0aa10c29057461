"""Pre-trained weights of vision transformers, from a safetensors file of the user's in one of three layouts."""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from l2h.errors import ModelError
from l2h.models.vit import ViT

#: From the names of Hugging Face transformers to timm's; query, key and value are joined afterwards.
_FROM_TRANSFORMERS = (
    (r"^vit\.", ""),
    (r"^embeddings\.cls_token", "cls_token"),
    (r"^embeddings\.position_embeddings", "pos_embed"),
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^layernorm\.", "norm."),
    (r"^classifier\.", "head."),
    (r"^encoder\.layer\.(\d+)\.layernorm_before\.", r"blocks.\1.norm1."),
    (r"^encoder\.layer\.(\d+)\.layernorm_after\.", r"blocks.\1.norm2."),
    (r"^encoder\.layer\.(\d+)\.attention\.output\.dense\.", r"blocks.\1.attn.proj."),
    (r"^encoder\.layer\.(\d+)\.attention\.attention\.", r"blocks.\1.attention.attention."),
    (r"^encoder\.layer\.(\d+)\.intermediate\.dense\.", r"blocks.\1.mlp.fc1."),
    (r"^encoder\.layer\.(\d+)\.output\.dense\.", r"blocks.\1.mlp.fc2."),
)
#: From timm's names to this package's.
_FROM_TIMM = (
    (r"^patch_embed\.proj\.", "patch_embed."),
    (r"\.attn\.(qkv|proj)\.", r".\1."),
    (r"\.mlp\.fc1\.", ".mlp.0."),
    (r"\.mlp\.fc2\.", ".mlp.3."),
)


def load_pretrained(model: ViT, path: str | Path) -> list[str]:
    """Load weights from a safetensors file into ``model``.

    Three layouts are read: this package's own, timm's, and that of Hugging Face transformers. Position embeddings of
    another grid are interpolated. A head for another number of classes is left as it was initialised.

    Returns:
        Names of the tensors of ``model`` that the file did not set: empty, or those of the head.

    Raises:
        ModelError: the file is missing or damaged, lacks a tensor, or has one of another shape.
    """
    given = _read(path)
    own = model.state_dict()
    positions = given.get("pos_embed")
    if positions is not None and positions.ndim == 3 and positions.shape[1] != own["pos_embed"].shape[1]:
        given["pos_embed"] = _regrid(positions, model.grid)
    missing, wrong = [], []
    for name, tensor in own.items():
        if name not in given or (name.startswith("head.") and given[name].shape != tensor.shape):
            missing.append(name)
        elif given[name].shape != tensor.shape:
            wrong.append(f"{name}: file {tuple(given[name].shape)}, model {tuple(tensor.shape)}")
    lacking = [name for name in missing if not name.startswith("head.")]
    if lacking or wrong:
        raise ModelError(
            f"{path} does not fit this ViT; missing: {lacking[:5] or 'none'}; of another shape: {wrong[:5] or 'none'}. "
            "Set size, patch, width, depth and heads to those of the file"
        )
    model.load_state_dict({name: given[name] for name in own if name not in missing}, strict=False)
    return missing


def pretrained_options(path: str | Path) -> dict[str, Any]:
    """Return the options of the ViT whose weights a safetensors file holds, in any layout of :func:`load_pretrained`.

    Weights do not tell the number of heads: it is taken to be 64 features per head, as in the published models, and at
    least one head.
    """
    given = _read(path)
    depth = len({name.split(".")[1] for name in given if name.startswith("blocks.")})
    needed = ("pos_embed", "blocks.0.mlp.0.weight", "patch_embed.0.weight", "patch_embed.weight")
    shapes = {name: given[name].shape for name in needed if name in given}
    if len(shapes) != 3 or not depth:
        lacking = [name for name in needed[:2] if name not in shapes] or ["patch_embed.weight"]
        raise ModelError(f"{path} holds no ViT; missing: {lacking}")
    tokens, width = shapes["pos_embed"][1:]
    options: dict[str, Any] = {"width": width, "depth": depth, "heads": max(1, width // 64)}
    options["ratio"] = shapes["blocks.0.mlp.0.weight"][0] / width
    if "patch_embed.weight" in shapes:
        options["patch"] = shapes["patch_embed.weight"][-1]
    else:
        halvings = sum(bool(re.fullmatch(r"patch_embed\.\d+\.weight", name)) for name in given)
        options |= {"patch": 2**halvings, "stem": "conv"}
    return options | {"size": round((tokens - 1) ** 0.5) * options["patch"]}


def _read(path: str | Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file, under this package's names, whichever layout they came in."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        raw = load_file(str(path))
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"cannot read weights from {path}: {error}; give a whole .safetensors file (pickled weights are not loaded)"
        ) from error
    from_transformers = any("encoder.layer." in name for name in raw)
    renames = (*_FROM_TRANSFORMERS, *_FROM_TIMM) if from_transformers else _FROM_TIMM
    out: dict[str, Tensor] = {}
    for original, tensor in raw.items():
        name = original
        for pattern, replacement in renames:
            name = re.sub(pattern, replacement, name)
        out[name] = tensor
    return _join_attention(out) if from_transformers else out


def _join_attention(raw: dict[str, Tensor]) -> dict[str, Tensor]:
    """Join query, key and value to one matrix; where one of them is missing, so is the joined matrix."""
    out = dict(raw)
    for name in raw:
        part = re.fullmatch(r"(blocks\.\d+\.)attention\.attention\.query\.(weight|bias)", name)
        names = [] if part is None else [name.replace("query", kind) for kind in ("query", "key", "value")]
        if part is not None and all(each in raw for each in names):
            out[f"{part[1]}qkv.{part[2]}"] = torch.cat([raw[each] for each in names])
    return out


def _regrid(pos_embed: Tensor, grid: int) -> Tensor:
    """Interpolate position embeddings (1, 1 + g*g, width) to another grid; the class token's stays as it is."""
    old = round(max(pos_embed.shape[1] - 1, 0) ** 0.5)
    if old < 1 or old * old != pos_embed.shape[1] - 1:
        raise ModelError(f"position embeddings for {pos_embed.shape[1] - 1} patches are not a square grid")
    token, rest = pos_embed[:, :1], pos_embed[:, 1:]
    image = rest.reshape(1, old, old, -1).permute(0, 3, 1, 2)
    image = F.interpolate(image, size=(grid, grid), mode="bicubic", align_corners=False)
    return torch.cat([token, image.permute(0, 2, 3, 1).reshape(1, grid * grid, -1)], dim=1)
