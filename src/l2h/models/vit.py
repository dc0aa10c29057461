"""A vision transformer written on torch."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from l2h.errors import ModelError
from l2h.models.networks import Network, check_image_shape, resize


class ViT(Network):
    """A vision transformer: patches, a class token, pre-norm transformer blocks, a linear head.

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
        norm_eps: epsilon of the layer norms; 1e-6 in the published pre-trained weights.
        drop_path: the probability that a sample skips a half-block in training: 0 at the first block, this at the last.
        stem: how tokens are made: ``patch``, one linear map per patch, as published; or ``conv``, convolutions and
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
        check_image_shape("vit", input_shape)
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
            self.patch_embed = _convolutional_stem(input_shape[0], width, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, self.grid**2 + 1, width))
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        if not 0 <= drop_path < 1:
            raise ModelError(f"vit: drop_path={drop_path} must be in [0, 1)")
        skipped = [drop_path * k / max(1, depth - 1) for k in range(depth)]
        self.blocks = nn.ModuleList(Block(width, heads, ratio, dropout, norm_eps, share) for share in skipped)
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.head = nn.Linear(width, outputs)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)

    def embed(self, x: Tensor) -> Tensor:
        tokens = self.patch_embed(resize(x, self.size)).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(tokens.shape[0], -1, -1), tokens], dim=1) + self.pos_embed
        for block in self.blocks:
            tokens = block(tokens)
        return self.norm(tokens)[:, 0]  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and an MLP, each behind a layer norm and beside a skip connection."""

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
        n, t, width = tokens.shape
        qkv = self.qkv(self.norm1(tokens)).reshape(n, t, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, width)
        tokens = tokens + self._drop_path(self.drop(self.proj(mixed)))
        out: Tensor = tokens + self._drop_path(self.drop(self.mlp(self.norm2(tokens))))
        return out

    def _drop_path(self, added: Tensor) -> Tensor:
        """In training, zero what a half-block adds for some samples, and scale up the others to keep the mean."""
        if not self.training or not self.drop_path:
            return added
        kept = torch.rand(len(added), 1, 1, device=added.device) >= self.drop_path
        return added * (kept / (1 - self.drop_path)).to(added.dtype)


def _convolutional_stem(channels: int, width: int, patch: int) -> nn.Sequential:
    """Return rounds of convolution, ReLU and pooling, each of which halves the side, until a patch is one token."""
    times = patch.bit_length() - 1
    if 2**times != patch or not times:
        raise ModelError(f"vit: stem='conv' halves the side, so patch must be 2, 4, 8 or 16, not {patch}")
    layers: list[nn.Module] = []
    for k in range(times):
        outputs = width // 2 ** min(2, times - 1 - k)
        layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]
        channels = outputs
    return nn.Sequential(*layers)
