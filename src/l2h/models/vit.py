"""A vision transformer written on torch, and the loading of pre-trained weights from a file of the user's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from l2h.errors import ModelError


class ViT(nn.Module):
    """Patches, a class token, pre-norm transformer blocks, a linear head.

    ViT-B/16 at 224 is ``ViT((3, 224, 224), K, size=224, patch=16, width=768, depth=12, heads=12)``.

    Args:
        input_shape: (channels, height, width); resized bilinearly to ``size`` where it differs.
        outputs: how many scores.
        size: side of the image the patches are cut from; the input's own where None.
        patch: side of a patch.
        width: features of a token.
        depth: how many blocks.
        heads: attention heads; must divide ``width``.
        ratio: hidden width of a block's MLP over ``width``.
        dropout: inside the MLPs and after attention.
        norm_eps: of the layer norms; 1e-6 in the published pre-trained weights.
        drop_path: in training, how often a sample leaves a half-block out, from 0 at the first to this at the last.
        stem: how tokens are made: ``patch``, one linear map a patch, as published; or ``conv``, convolutions and
            poolings that halve the side until a patch is one token, which learns from far fewer images.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        outputs: int,
        size: int | None = None,
        patch: int = 4,
        width: int = 192,
        depth: int = 6,
        heads: int = 3,
        ratio: float = 4.0,
        dropout: float = 0.0,
        norm_eps: float = 1e-6,
        drop_path: float = 0.0,
        stem: str = "patch",
    ) -> None:
        super().__init__()
        if len(input_shape) != 3:
            raise ModelError(f"vit needs images (channels, height, width); got {input_shape}")
        self.size = size or max(input_shape[1:])
        if self.size % patch:
            raise ModelError(f"vit: patch={patch} does not divide the image side {self.size}")
        if width % heads:
            raise ModelError(f"vit: heads={heads} does not divide width={width}")
        self.grid = self.size // patch
        if stem not in ("patch", "conv"):
            raise ModelError(f"vit: stem={stem!r} is neither 'patch' nor 'conv'")
        self.patch_embed: nn.Module = nn.Conv2d(input_shape[0], width, patch, stride=patch)
        if stem == "conv":
            self.patch_embed = _halvings(input_shape[0], width, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, self.grid**2 + 1, width))
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        if not 0 <= drop_path < 1:
            raise ModelError(f"vit: drop_path={drop_path} is not a share below 1")
        left_out = [drop_path * k / max(1, depth - 1) for k in range(depth)]
        self.blocks = nn.ModuleList(Block(width, heads, ratio, dropout, norm_eps, share) for share in left_out)
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.head = nn.Linear(width, outputs)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)

    def embed(self, x: Tensor) -> Tensor:
        """The class token's features (n, width) after the last block."""
        if x.shape[-2:] != (self.size, self.size):
            x = F.interpolate(x, size=(self.size, self.size), mode="bilinear", align_corners=False)
        tokens = self.patch_embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(tokens.shape[0], -1, -1), tokens], dim=1) + self.pos_embed
        for block in self.blocks:
            tokens = block(tokens)
        return self.norm(tokens)[:, 0]  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """Scores (n, outputs)."""
        scores: Tensor = self.head(self.embed(x))
        return scores


def _halvings(channels: int, width: int, patch: int) -> nn.Sequential:
    """Convolution, ReLU and pooling, each of which halves the side, until a patch is one token."""
    times = patch.bit_length() - 1
    if 2**times != patch or not times:
        raise ModelError(f"vit: stem='conv' halves the side, so patch must be 2, 4, 8 or 16, not {patch}")
    layers: list[nn.Module] = []
    for k in range(times):
        made = width // 2 ** min(2, times - 1 - k)
        layers += [nn.Conv2d(channels, made, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]
        channels = made
    return nn.Sequential(*layers)


class Block(nn.Module):
    """Attention and an MLP, each behind a layer norm and beside a skip."""

    def __init__(
        self, width: int, heads: int, ratio: float, dropout: float, norm_eps: float, drop_path: float = 0.0
    ) -> None:
        super().__init__()
        self.heads, self.drop_path = heads, drop_path
        self.norm1 = nn.LayerNorm(width, eps=norm_eps)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, eps=norm_eps)
        hidden = int(width * ratio)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (n, t, width) to tokens of the same shape."""
        n, t, width = tokens.shape
        qkv = self.qkv(self.norm1(tokens)).reshape(n, t, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, width)
        tokens = tokens + self._kept(self.drop(self.proj(mixed)))
        out: Tensor = tokens + self._kept(self.drop(self.mlp(self.norm2(tokens))))
        return out

    def _kept(self, added: Tensor) -> Tensor:
        """What a half-block adds; in training nothing for some samples, and the more for the others."""
        if not self.training or not self.drop_path:
            return added
        kept = torch.rand(len(added), 1, 1, device=added.device) >= self.drop_path
        return added * (kept / (1 - self.drop_path)).to(added.dtype)


def load_pretrained(model: ViT, path: str | Path) -> list[str]:
    """Load weights from a safetensors file into ``model``.

    Three layouts are read: this module's own, timm's, and that of Hugging Face transformers. Position embeddings of
    another grid are interpolated. A head for another number of classes is left as it was initialised.

    Returns:
        Names of the tensors of ``model`` that the file did not set: empty, or the head's.

    Raises:
        ModelError: the file is missing or damaged, or lacks a tensor, or one has another shape.
    """
    given = _read(path)
    own = model.state_dict()
    positions = given.get("pos_embed")
    if positions is not None and positions.ndim == 3 and positions.shape[1] != own["pos_embed"].shape[1]:
        given["pos_embed"] = _regrid(positions, model.grid)
    missing, wrong = [], []
    for name, tensor in own.items():
        if name not in given:
            missing.append(name)
        elif given[name].shape != tensor.shape:
            if name.startswith("head."):
                missing.append(name)
            else:
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
    """The options of the ViT whose weights a safetensors file holds, in any layout of :func:`load_pretrained`.

    The number of heads cannot be read off weights: 64 features a head, as in the published models, or one head.

    Raises:
        ModelError: the file is missing or damaged, or holds no ViT.
    """
    given = _read(path)
    depth = len({name.split(".")[1] for name in given if name.startswith("blocks.")})
    needed = ("pos_embed", "blocks.0.mlp.0.weight", "patch_embed.0.weight", "patch_embed.weight")
    found = {name: given[name].shape for name in needed if name in given}
    if len(found) != 3 or not depth:
        lacking = [name for name in needed[:2] if name not in found] or ["patch_embed.weight"]
        raise ModelError(f"{path} holds no ViT; missing: {lacking}")
    tokens, width = found["pos_embed"][1:]
    options: dict[str, Any] = {"width": width, "depth": depth, "heads": max(1, width // 64)}
    options["ratio"] = found["blocks.0.mlp.0.weight"][0] / width
    if "patch_embed.weight" in found:
        options["patch"] = found["patch_embed.weight"][-1]
    else:
        halvings = sum(bool(re.fullmatch(r"patch_embed\.\d+\.weight", name)) for name in given)
        options |= {"patch": 2**halvings, "stem": "conv"}
    return options | {"size": round((tokens - 1) ** 0.5) * options["patch"]}


def _read(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, under this module's names."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return _own_names(load_file(str(path)))
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"cannot read weights from {path}: {error}; give a whole .safetensors file (pickled weights are not loaded)"
        ) from error


def _own_names(raw: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under this module's names, whichever layout they came in."""
    if any("encoder.layer." in name for name in raw):
        raw = _from_transformers(raw)
    rename = (
        (r"^patch_embed\.proj\.", "patch_embed."),
        (r"\.attn\.(qkv|proj)\.", r".\1."),
        (r"\.mlp\.fc1\.", ".mlp.0."),
        (r"\.mlp\.fc2\.", ".mlp.3."),
    )
    out = {}
    for original, tensor in raw.items():
        name = original
        for pattern, by in rename:
            name = re.sub(pattern, by, name)
        out[name] = tensor
    return out


def _from_transformers(raw: dict[str, Tensor]) -> dict[str, Tensor]:
    """Hugging Face's names to timm's: query, key and value become one matrix."""
    strip = {re.sub(r"^vit\.", "", name): tensor for name, tensor in raw.items()}
    plain = {
        "embeddings.cls_token": "cls_token",
        "embeddings.position_embeddings": "pos_embed",
        "embeddings.patch_embeddings.projection.": "patch_embed.proj.",
        "layernorm.": "norm.",
        "classifier.": "head.",
    }
    inner = {
        "layernorm_before.": "norm1.",
        "layernorm_after.": "norm2.",
        "attention.output.dense.": "attn.proj.",
        "intermediate.dense.": "mlp.fc1.",
        "output.dense.": "mlp.fc2.",
    }
    out: dict[str, Tensor] = {}
    joined: dict[str, dict[str, Tensor]] = {}
    for name, tensor in strip.items():
        layer = re.match(r"encoder\.layer\.(\d+)\.(.*)", name)
        if layer is None:
            for theirs, ours in plain.items():
                if name.startswith(theirs):
                    out[ours + name[len(theirs) :]] = tensor
            continue
        block, rest = layer.groups()
        part = re.match(r"attention\.attention\.(query|key|value)\.(weight|bias)", rest)
        if part:
            joined.setdefault(f"blocks.{block}.attn.qkv.{part[2]}", {})[part[1]] = tensor
            continue
        for theirs, ours in inner.items():
            if rest.startswith(theirs):
                out[f"blocks.{block}.{ours}{rest[len(theirs) :]}"] = tensor
                break
    for name, parts in joined.items():
        if len(parts) == 3:  # else the joined tensor is told as missing
            out[name] = torch.cat([parts["query"], parts["key"], parts["value"]])
    return out


def _regrid(pos_embed: Tensor, grid: int) -> Tensor:
    """Position embeddings (1, 1 + g*g, width) interpolated to another grid; the class token's is kept."""
    old = round(max(pos_embed.shape[1] - 1, 0) ** 0.5)
    if old < 1 or old * old != pos_embed.shape[1] - 1:
        raise ModelError(f"position embeddings for {pos_embed.shape[1] - 1} patches are not a square grid")
    token, rest = pos_embed[:, :1], pos_embed[:, 1:]
    image = rest.reshape(1, old, old, -1).permute(0, 3, 1, 2)
    image = F.interpolate(image, size=(grid, grid), mode="bicubic", align_corners=False)
    return torch.cat([token, image.permute(0, 2, 3, 1).reshape(1, grid * grid, -1)], dim=1)
