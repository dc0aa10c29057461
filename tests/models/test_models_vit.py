"""The vision transformer, and pre-trained weights in three layouts, against forward passes written here."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import gelu, interpolate

from l2h.errors import ModelError
from l2h.models import ViT, load_pretrained, pretrained_options

SIDE, PATCH, WIDTH, DEPTH, HEADS, CLASSES = 16, 4, 12, 2, 3, 5
HIDDEN = 4 * WIDTH
Tensors = dict[str, Tensor]
# Rounding of float32 sums in another order, two blocks deep.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def make(classes: int = CLASSES, side: int = SIDE, width: int = WIDTH, depth: int = DEPTH) -> ViT:
    torch.manual_seed(1)
    return ViT((3, side, side), classes, patch=PATCH, width=width, depth=depth, heads=HEADS).eval()


def images(side: int = SIDE) -> Tensor:
    return torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(2))


def random_tensors(shapes: dict[str, tuple[int, ...]]) -> Tensors:
    generator = torch.Generator().manual_seed(3)
    return {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def timm_tensors(classes: int = CLASSES, grid: int = SIDE // PATCH) -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, WIDTH),
        "pos_embed": (1, grid**2 + 1, WIDTH),
        "patch_embed.proj.weight": (WIDTH, 3, PATCH, PATCH),
        "patch_embed.proj.bias": (WIDTH,),
        "norm.weight": (WIDTH,),
        "norm.bias": (WIDTH,),
        "head.weight": (classes, WIDTH),
        "head.bias": (classes,),
    }
    for i in range(DEPTH):
        for name, (outputs, inputs) in {
            "attn.qkv": (3 * WIDTH, WIDTH),
            "attn.proj": (WIDTH, WIDTH),
            "mlp.fc1": (HIDDEN, WIDTH),
            "mlp.fc2": (WIDTH, HIDDEN),
        }.items():
            shapes[f"blocks.{i}.{name}.weight"] = (outputs, inputs)
            shapes[f"blocks.{i}.{name}.bias"] = (outputs,)
        for name in ("norm1", "norm2"):
            shapes[f"blocks.{i}.{name}.weight"] = shapes[f"blocks.{i}.{name}.bias"] = (WIDTH,)
    return random_tensors(shapes)


def transformers_tensors(prefix: str = "vit.") -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}embeddings.cls_token": (1, 1, WIDTH),
        f"{prefix}embeddings.position_embeddings": (1, (SIDE // PATCH) ** 2 + 1, WIDTH),
        f"{prefix}embeddings.patch_embeddings.projection.weight": (WIDTH, 3, PATCH, PATCH),
        f"{prefix}embeddings.patch_embeddings.projection.bias": (WIDTH,),
        f"{prefix}layernorm.weight": (WIDTH,),
        f"{prefix}layernorm.bias": (WIDTH,),
    }
    if prefix:
        shapes |= {"classifier.weight": (CLASSES, WIDTH), "classifier.bias": (CLASSES,)}
    else:
        shapes |= {"pooler.dense.weight": (WIDTH, WIDTH), "pooler.dense.bias": (WIDTH,)}
    for i in range(DEPTH):
        layer = f"{prefix}encoder.layer.{i}."
        for name, (outputs, inputs) in {
            "attention.attention.query": (WIDTH, WIDTH),
            "attention.attention.key": (WIDTH, WIDTH),
            "attention.attention.value": (WIDTH, WIDTH),
            "attention.output.dense": (WIDTH, WIDTH),
            "intermediate.dense": (HIDDEN, WIDTH),
            "output.dense": (WIDTH, HIDDEN),
        }.items():
            shapes[f"{layer}{name}.weight"] = (outputs, inputs)
            shapes[f"{layer}{name}.bias"] = (outputs,)
        for name in ("layernorm_before", "layernorm_after"):
            shapes[f"{layer}{name}.weight"] = shapes[f"{layer}{name}.bias"] = (WIDTH,)
    return random_tensors(shapes)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention head by head, written out."""
    size = WIDTH // HEADS
    mixed = []
    for h in range(HEADS):
        part = slice(h * size, (h + 1) * size)
        weights = torch.softmax(q[..., part] @ k[..., part].transpose(1, 2) / size**0.5, dim=-1)
        mixed.append(weights @ v[..., part])
    return torch.cat(mixed, dim=-1)


def patches_of(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Patch by patch, row by row: each is flattened and mapped by the kernel as a matrix."""
    tokens = []
    for row in range(0, x.shape[2], PATCH):
        for column in range(0, x.shape[3], PATCH):
            patch = x[:, :, row : row + PATCH, column : column + PATCH].reshape(len(x), -1)
            tokens.append(patch @ weight.reshape(len(weight), -1).T + bias)
    return torch.stack(tokens, dim=1)


def norm(t: Tensors, name: str, z: Tensor) -> Tensor:
    centred = z - z.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * t[f"{name}.weight"] + t[f"{name}.bias"]


def line(t: Tensors, name: str, z: Tensor) -> Tensor:
    return z @ t[f"{name}.weight"].T + t[f"{name}.bias"]


def forward_timm(t: Tensors, x: Tensor) -> Tensor:
    tokens = patches_of(x, t["patch_embed.proj.weight"], t["patch_embed.proj.bias"])
    tokens = torch.cat([t["cls_token"].expand(len(x), 1, -1), tokens], dim=1) + t["pos_embed"]
    for i in range(DEPTH):
        b = f"blocks.{i}."
        q, k, v = line(t, f"{b}attn.qkv", norm(t, f"{b}norm1", tokens)).chunk(3, dim=-1)
        tokens = tokens + line(t, f"{b}attn.proj", attend(q, k, v))
        tokens = tokens + line(t, f"{b}mlp.fc2", gelu(line(t, f"{b}mlp.fc1", norm(t, f"{b}norm2", tokens))))
    return line(t, "head", norm(t, "norm", tokens)[:, 0])


def features_transformers(t: Tensors, x: Tensor, prefix: str) -> Tensor:
    e = f"{prefix}embeddings."
    projection = f"{e}patch_embeddings.projection"
    tokens = patches_of(x, t[f"{projection}.weight"], t[f"{projection}.bias"])
    tokens = torch.cat([t[f"{e}cls_token"].expand(len(x), 1, -1), tokens], dim=1) + t[f"{e}position_embeddings"]
    for i in range(DEPTH):
        layer = f"{prefix}encoder.layer.{i}."
        before = norm(t, f"{layer}layernorm_before", tokens)
        q, k, v = (line(t, f"{layer}attention.attention.{part}", before) for part in ("query", "key", "value"))
        tokens = tokens + line(t, f"{layer}attention.output.dense", attend(q, k, v))
        after = norm(t, f"{layer}layernorm_after", tokens)
        tokens = tokens + line(t, f"{layer}output.dense", gelu(line(t, f"{layer}intermediate.dense", after)))
    return norm(t, f"{prefix}layernorm", tokens)[:, 0]


# The network.


def test_permuted_patches_with_permuted_positions_give_the_same_scores() -> None:
    model, x = make(), images()
    grid = SIDE // PATCH
    order = torch.randperm(grid**2, generator=torch.Generator().manual_seed(4))
    cut = x.reshape(3, 3, grid, PATCH, grid, PATCH).permute(0, 2, 4, 1, 3, 5).reshape(3, grid**2, 3, PATCH, PATCH)
    moved = cut[:, order].reshape(3, grid, grid, 3, PATCH, PATCH).permute(0, 3, 1, 4, 2, 5).reshape(x.shape)
    with torch.no_grad():
        before, unmoved_positions = model(x), model(moved)
        model.pos_embed.copy_(torch.cat([model.pos_embed[:, :1], model.pos_embed[:, 1:][:, order]], dim=1))
        after = model(moved)
    torch.testing.assert_close(after, before, **CLOSE)
    assert not torch.allclose(unmoved_positions, before, **CLOSE), "positions matter"


def test_vit_base_has_the_published_parameter_count() -> None:
    with torch.device("meta"):
        model = ViT((3, 224, 224), 1000, size=224, patch=16, width=768, depth=12, heads=12)
    block = 2 * 2 * 768 + (768 * 3 * 768 + 3 * 768) + (768 * 768 + 768) + 2 * 4 * 768 * 768 + 5 * 768
    by_hand = (768 * 3 * 256 + 768) + 768 + 197 * 768 + 12 * block + 2 * 768 + (768 * 1000 + 1000)
    assert sum(p.numel() for p in model.parameters()) == by_hand == 86_567_656


def test_an_image_of_another_size_is_resized() -> None:
    model = ViT((3, 12, 10), 4, size=16, patch=4, width=12, depth=1, heads=3).eval()
    x = torch.randn(2, 3, 12, 10, generator=torch.Generator().manual_seed(5))
    big = interpolate(x, size=(16, 16), mode="bilinear", align_corners=False)
    assert torch.equal(model(x), model(big))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"patch": 5}, "patch=5 does not divide"),
        ({"heads": 5}, "heads=5 does not divide"),
    ],
)
def test_sizes_that_do_not_divide_are_told(arguments: dict[str, int], told: str) -> None:
    with pytest.raises(ModelError, match=told):
        ViT((3, 32, 32), 10, **arguments)


def test_a_table_is_no_image() -> None:
    with pytest.raises(ModelError, match="needs images"):
        ViT((64,), 10)


# Pre-trained weights.


def test_own_layout_comes_back(tmp_path: Path) -> None:
    source = make()
    save_file(source.state_dict(), tmp_path / "own.safetensors")
    torch.manual_seed(9)
    model = ViT((3, SIDE, SIDE), CLASSES, patch=PATCH, width=WIDTH, depth=DEPTH, heads=HEADS).eval()
    assert not torch.allclose(model(images()), source(images()))
    assert load_pretrained(model, tmp_path / "own.safetensors") == []
    assert torch.equal(model(images()), source(images()))


def test_timm_layout_gives_the_outputs_of_its_own_tensors(tmp_path: Path) -> None:
    tensors = timm_tensors()
    save_file(tensors, tmp_path / "timm.safetensors")
    model = make()
    assert load_pretrained(model, tmp_path / "timm.safetensors") == []
    torch.testing.assert_close(model(images()), forward_timm(tensors, images()), **CLOSE)


def test_transformers_layout_gives_the_outputs_of_its_own_tensors(tmp_path: Path) -> None:
    tensors = transformers_tensors()
    save_file(tensors, tmp_path / "hf.safetensors")
    model = make()
    assert load_pretrained(model, tmp_path / "hf.safetensors") == []
    features = features_transformers(tensors, images(), "vit.")
    torch.testing.assert_close(model.embed(images()), features, **CLOSE)
    torch.testing.assert_close(model(images()), line(tensors, "classifier", features), **CLOSE)


def test_transformers_backbone_without_a_head_keeps_the_models_head(tmp_path: Path) -> None:
    tensors = transformers_tensors(prefix="")
    save_file(tensors, tmp_path / "backbone.safetensors")
    model = make()
    head = model.head.weight.clone()
    assert sorted(load_pretrained(model, tmp_path / "backbone.safetensors")) == ["head.bias", "head.weight"]
    torch.testing.assert_close(model.embed(images()), features_transformers(tensors, images(), ""), **CLOSE)
    assert torch.equal(model.head.weight, head)


def test_half_precision_weights_are_taken(tmp_path: Path) -> None:
    tensors = {name: tensor.half() for name, tensor in timm_tensors().items()}
    save_file(tensors, tmp_path / "half.safetensors")
    model = make()
    assert load_pretrained(model, tmp_path / "half.safetensors") == []
    whole = {name: tensor.float() for name, tensor in tensors.items()}
    torch.testing.assert_close(model(images()), forward_timm(whole, images()), **CLOSE)


def test_a_head_of_another_number_of_classes_is_reported_and_left(tmp_path: Path) -> None:
    tensors = timm_tensors(classes=CLASSES + 2)
    save_file(tensors, tmp_path / "other.safetensors")
    model = make()
    head = model.head.weight.clone()
    assert sorted(load_pretrained(model, tmp_path / "other.safetensors")) == ["head.bias", "head.weight"]
    assert torch.equal(model.head.weight, head)
    assert torch.equal(model.norm.weight, tensors["norm.weight"])


def cubic_weight(distance: float) -> float:
    """Keys' kernel with a = -0.75, torch's choice for images."""
    a, d = -0.75, abs(distance)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * (d**3 - 5 * d**2 + 8 * d - 4) if d < 2 else 0.0


def resampling(old: int, new: int) -> Tensor:
    """The matrix (new, old) that resamples a line by cubics, edges repeated."""
    matrix = torch.zeros(new, old, dtype=torch.float64)
    for i in range(new):
        at = (i + 0.5) * old / new - 0.5
        for tap in range(math.floor(at) - 1, math.floor(at) + 3):
            matrix[i, min(max(tap, 0), old - 1)] += cubic_weight(at - tap)
    return matrix


@pytest.mark.parametrize("side", [SIDE // 2, 2 * SIDE, SIDE + 3 * PATCH])
def test_positions_of_another_grid_are_interpolated(side: int, tmp_path: Path) -> None:
    old, new = SIDE // PATCH, side // PATCH
    tensors = timm_tensors()
    save_file(tensors, tmp_path / "grid.safetensors")
    model = make(side=side)
    assert load_pretrained(model, tmp_path / "grid.safetensors") == []
    assert torch.equal(model.pos_embed[:, :1], tensors["pos_embed"][:, :1]), "the class token has no place"
    field = tensors["pos_embed"][0, 1:].reshape(old, old, WIDTH).double()
    matrix = resampling(old, new)
    expected = torch.einsum("ri,cj,ijk->rck", matrix, matrix, field).reshape(new**2, WIDTH)
    torch.testing.assert_close(model.pos_embed.detach()[0, 1:].double(), expected, rtol=0, atol=1e-5)
    assert model(images(side)).shape == (3, CLASSES)


def _without(name: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__delitem__(name)


@pytest.mark.parametrize(
    ("tensors", "damage", "told"),
    [
        (timm_tensors, _without("norm.weight"), "norm.weight"),
        (timm_tensors, _without("blocks.1.attn.qkv.bias"), "blocks.1.qkv.bias"),
        (timm_tensors, _without("pos_embed"), "pos_embed"),
        (transformers_tensors, _without("vit.layernorm.bias"), "norm.bias"),
        (
            transformers_tensors,
            _without("vit.encoder.layer.0.attention.attention.key.weight"),
            "blocks.0.qkv.weight",
        ),
    ],
)
def test_a_lacking_tensor_is_named(
    tensors: Callable[[], Tensors], damage: Callable[[Tensors], None], told: str, tmp_path: Path
) -> None:
    lacking = tensors()
    damage(lacking)
    save_file(lacking, tmp_path / "lacking.safetensors")
    with pytest.raises(ModelError) as caught:
        load_pretrained(make(), tmp_path / "lacking.safetensors")
    assert told in str(caught.value)
    assert "Set size, patch, width, depth and heads" in str(caught.value)


@pytest.mark.parametrize("positions", [(5,), (1, 12, WIDTH), (1, 17, WIDTH + 1), (0,)])
def test_positions_that_are_no_grid_are_a_model_error(positions: tuple[int, ...], tmp_path: Path) -> None:
    tensors = timm_tensors() | {"pos_embed": torch.zeros(positions)}
    save_file(tensors, tmp_path / "positions.safetensors")
    with pytest.raises(ModelError, match=r"position|pos_embed"):
        load_pretrained(make(), tmp_path / "positions.safetensors")


def test_another_width_and_depth_are_told_with_both_shapes_and_nothing_is_loaded(tmp_path: Path) -> None:
    save_file(timm_tensors(), tmp_path / "small.safetensors")
    model = make(width=2 * WIDTH)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ModelError) as caught:
        load_pretrained(model, tmp_path / "small.safetensors")
    assert f"file (1, 1, {WIDTH}), model (1, 1, {2 * WIDTH})" in str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    with pytest.raises(ModelError, match=r"missing: \['blocks\.2\."):
        load_pretrained(make(depth=DEPTH + 1), tmp_path / "small.safetensors")


def test_a_missing_file_is_named_with_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere\.safetensors.*give"):
        load_pretrained(make(), tmp_path / "nowhere.safetensors")


@pytest.mark.parametrize("kept", [0, 4, 60, -1])
def test_a_damaged_file_is_named_with_what_to_give(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "damaged.safetensors"
    save_file(timm_tensors(), path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"damaged\.safetensors.*give"):
        load_pretrained(make(), path)


def test_a_folder_is_no_weights_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="give"):
        load_pretrained(make(), tmp_path)


class Trap:
    """A pickle of it writes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.write_text, (self.path, "executed"))


@pytest.mark.parametrize("writer", ["pickle", "torch"])
def test_a_pickle_under_the_name_of_safetensors_is_refused_and_not_run(writer: str, tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    path = tmp_path / "weights.safetensors"
    if writer == "pickle":
        path.write_bytes(pickle.dumps(Trap(sprung)))
        pickle.loads(path.read_bytes())
        assert sprung.exists(), "the trap works where a pickle is read"
        sprung.unlink()
    else:
        torch.save({"cls_token": Trap(sprung)}, path)
    with pytest.raises(ModelError, match=r"weights\.safetensors"):
        load_pretrained(make(), path)
    assert not sprung.exists()


def test_blocks_are_left_out_in_training_alone_and_the_mean_stays() -> None:
    torch.manual_seed(0)
    plain = ViT((3, 8, 8), 4, patch=4, width=16, depth=2, heads=2)
    dropping = ViT((3, 8, 8), 4, patch=4, width=16, depth=2, heads=2, drop_path=0.5)
    dropping.load_state_dict(plain.state_dict())
    x = torch.randn(1, 3, 8, 8).expand(4000, -1, -1, -1)
    with torch.no_grad():
        assert torch.equal(dropping.eval()(x[:2]), plain.eval()(x[:2]))
        block, tokens = dropping.blocks[-1].train(), torch.randn(1, 5, 16).expand(4000, -1, -1)
        added = block._drop_path(tokens)
    kept = added.abs().sum(dim=(1, 2)) > 0
    assert abs(float(kept.float().mean()) - 0.5) < 0.04
    torch.testing.assert_close(added[kept], 2 * tokens[kept])


def test_a_share_of_blocks_left_out_is_below_one() -> None:
    with pytest.raises(ModelError, match="drop_path"):
        ViT((3, 8, 8), 4, drop_path=1.0)


# Tokens by convolutions.


@pytest.mark.parametrize("patch", [2, 4, 8])
def test_a_convolutional_stem_gives_as_many_tokens_as_patches(patch: int) -> None:
    torch.manual_seed(0)
    model = ViT((3, 16, 16), 5, patch=patch, width=16, depth=1, heads=2, stem="conv").eval()
    x = torch.randn(2, 3, 16, 16)
    assert model.patch_embed(x).shape == (2, 16, 16 // patch, 16 // patch)
    assert model(x).shape == (2, 5)


def test_a_convolutional_stem_sees_beyond_a_patch() -> None:
    """One changed pixel reaches the tokens of neighbours; by patches it reaches its own alone."""
    reached = {}
    for stem in ("patch", "conv"):
        torch.manual_seed(0)
        embed = ViT((3, 16, 16), 5, patch=4, width=16, depth=1, heads=2, stem=stem).patch_embed
        x = torch.randn(1, 3, 16, 16)
        changed = x.clone()
        changed[0, :, 8, 8] += 3.0
        reached[stem] = int(((embed(x) - embed(changed)).abs().sum(dim=1) > 0).sum())
    assert reached["patch"] == 1
    assert reached["conv"] > 1


@pytest.mark.parametrize(
    ("options", "said"),
    [({"stem": "tree"}, "tree"), ({"stem": "conv", "patch": 1}, "patch"), ({"stem": "conv", "patch": 6}, "6")],
)
def test_a_stem_that_is_none_is_told(options: dict[str, object], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        ViT((3, 12, 12), 5, width=12, heads=3, **options)  # type: ignore[arg-type]


# What a file holds.


@pytest.mark.parametrize("layout", ["own", "conv", "timm", "transformers"])
def test_the_options_of_a_file_build_a_vit_that_takes_all_of_it(layout: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    source = ViT((3, 16, 16), 7, patch=4, width=128, depth=3, heads=2, ratio=2.0, stem="conv")
    tensors = {
        "own": lambda: make().state_dict(),
        "conv": source.state_dict,
        "timm": timm_tensors,
        "transformers": transformers_tensors,
    }[layout]()
    save_file(tensors, tmp_path / "vit.safetensors")
    options = pretrained_options(tmp_path / "vit.safetensors")
    if layout == "conv":
        wanted = {"width": 128, "depth": 3, "heads": 2, "ratio": 2.0, "patch": 4, "stem": "conv", "size": 16}
        assert options == wanted
    else:
        assert (options["width"], options["depth"], options["patch"], options["size"]) == (WIDTH, DEPTH, PATCH, SIDE)
    classes = 7 if layout == "conv" else CLASSES
    assert load_pretrained(ViT((3, 32, 32), classes, **options), tmp_path / "vit.safetensors") == []


def test_the_published_vit_b_16_has_twelve_heads(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = ViT((3, 224, 224), 1000, size=224, patch=16, width=768, depth=12, heads=12)
    tensors = {name: torch.zeros(tensor.shape, dtype=torch.float16) for name, tensor in model.state_dict().items()}
    save_file(tensors, tmp_path / "b16.safetensors")
    options = pretrained_options(tmp_path / "b16.safetensors")
    assert options == {"width": 768, "depth": 12, "heads": 12, "ratio": 4.0, "patch": 16, "size": 224}


def test_a_file_without_a_vit_is_told(tmp_path: Path) -> None:
    save_file({"foreign": torch.zeros(2)}, tmp_path / "foreign.safetensors")
    with pytest.raises(ModelError, match="pos_embed"):
        pretrained_options(tmp_path / "foreign.safetensors")
    with pytest.raises(ModelError, match="cannot read"):
        pretrained_options(tmp_path / "absent.safetensors")
