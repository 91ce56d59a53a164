"""Autoregressive models: what each output depends on, the loss, and the prefix."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.extensions.pretraining.conftest import TASKS, Make
from tests.extensions.variants.test_contract import CASES, ENTRIES
from vit.errors import UserError
from vit.extensions.pretraining.autoregressive import Autoregressive, prefix_mask
from vit.extensions.pretraining.masking import Corruption, patch_pixels

pytestmark = pytest.mark.filterwarnings("ignore")

HEAD = TASKS["autoregressive"][1]
N = 16
GELU = "tanh"  # of vit_ti16


@pytest.fixture
def make(make_task: Make) -> Make:
    return partial(make_task, "autoregressive")


def of_prefix(model: Autoregressive, *sizes: int) -> Corruption:
    """The corruption of images with these prefixes."""
    uniforms = torch.tensor(sizes, dtype=torch.float64)[:, None, None].expand(-1, 1, N)
    return model.draw((uniforms - 0.5) / (N - 1))


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "sines and cosines": {"pos_embed": "sincos2d"},
    "rotary, recomputed": {"pos_embed": "none", "rotary": {}, "recompute": True},
    "norm after pooling": {"norm_after_pool": True, "layer_scale": 0.5},
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_output_depends_on_the_patches_up_to_it_and_on_the_prefix_alone(
    architecture: str, make: Make
) -> None:
    model = make(architecture=ARCHITECTURES[architecture]).double()
    sizes = (1, 2, 9, N - 1)
    patches = torch.randn(len(sizes), N, 16, dtype=torch.float64, requires_grad=True)
    mask = prefix_mask(torch.tensor(sizes), N).double()
    tokens = model.model.encode(patches, (4, 4), bias=mask)
    reach = torch.zeros(len(sizes), N, N)
    for i in range(N):
        (gradient,) = torch.autograd.grad(tokens[:, i].square().sum(), patches, retain_graph=True)
        reach[:, i] = gradient.abs().sum(-1)
    for image, size in zip(reach, sizes, strict=True):
        for i in range(N):
            seen = max(i, size - 1) + 1
            assert (image[i, :seen] > 0).all() and not image[i, seen:].any()


@pytest.mark.parametrize(
    ("kind", "name", "options"), [case for case in CASES if case[0] not in ("stack", "stem")]
)
def test_a_part_either_keeps_the_future_hidden_or_is_refused(
    kind: str, name: str, options: dict[str, Any], make: Make
) -> None:
    part = {"name": name, **ENTRIES[kind, name].options, **options}
    if kind == "positions" and "size" in options:
        part["size"] = (3, 5)  # of another grid than this one
    if name == "bigbird":
        part |= {"block": 2, "random": 1}
    scores = name in ("softmax", "dot_product") and part.get("projected", True)
    sees_all = kind == "mixer" and not scores
    if sees_all or part.get("chosen") == 2:
        with pytest.raises(UserError, match="this task hides later patches"):
            make(architecture={"variant": {kind: part}})
        return
    encoder = make(architecture={"variant": {kind: part}}).model.double()
    mask = prefix_mask(torch.tensor([1, 9]), N).double()
    patches = torch.randn(2, N, 16, dtype=torch.float64)
    changed = patches.clone()
    changed[:, 9:] = torch.randn(2, 7, 16, dtype=torch.float64)
    with torch.no_grad():
        before, after = (encoder.encode(x, (4, 4), bias=mask) for x in (patches, changed))
    assert torch.equal(before[:, :9], after[:, :9])
    assert ((after - before)[:, 9:].abs().amax(-1) > 1e-9).all()


def test_a_prefix_of_one_patch_is_causal_attention(monkeypatch: pytest.MonkeyPatch, make) -> None:
    model = make(prefix=False).double().eval()
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    with torch.no_grad():
        ours = model(images, model.draw(torch.rand(2, 1, N)))

        def causal(q: Any, k: Any, v: Any, bias: Any) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        monkeypatch.setattr("vit.models.encoder.attend", causal)
        torch.testing.assert_close(model(images, of_prefix(model, 1, 1)), ours)
        torch.testing.assert_close(model(images, of_prefix(make(), 1, 1)), ours)


def head_of(tokens: np.ndarray, weights: dict[str, np.ndarray]) -> np.ndarray:
    """Section 3.2 in NumPy: residual MLPs after fixed positions (columns first), patch by patch."""

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    width = HEAD["head_width"]
    rows, columns = np.divmod(np.arange(N), 4)
    omega = 10_000.0 ** -(np.arange(width // 4) / (width / 4))
    angles = [axis[:, None] * omega for axis in (columns, rows)]
    table = np.concatenate([f(angle) for angle in angles for f in (np.sin, np.cos)], axis=1)
    x = linear(tokens, "embed") + table
    for i in range(HEAD["head_depth"]):
        inner = linear(norm(x, f"norms.{i}"), f"mlps.{i}.fc1")
        inner = F.gelu(torch.from_numpy(inner), approximate=GELU).numpy()
        x = x + linear(inner, f"mlps.{i}.fc2")
    return linear(norm(x, f"norms.{HEAD['head_depth']}"), "predictor")


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("norm_pix", [True, False])
def test_the_loss_is_that_of_a_loop(prefix: bool, norm_pix: bool, make: Make) -> None:
    model = make(prefix=prefix, norm_pix=norm_pix)
    images = torch.randn(3, 3, 16, 16)
    sizes = (1, 6, N - 1) if prefix else (1, 1, 1)
    corruption = of_prefix(model, *sizes)
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases, too
            parameter.add_(0.1 * torch.randn_like(parameter))
        mask = prefix_mask(torch.tensor(sizes), N)
        tokens = model.model.encode(*model.model.embed(images), bias=mask)
        found = model.target.loss(*model.scored(images, corruption))
    weights = {
        name: value.detach().double().numpy() for name, value in model.head.named_parameters()
    }
    outputs = head_of(tokens.double().numpy(), weights)
    pixels, errors = patch_pixels(images, 4).double().numpy(), []
    for image in range(3):
        for patch in range(sizes[image], N):
            target = pixels[image, patch]
            if norm_pix:
                target = (target - target.mean()) / np.sqrt(target.var(ddof=1) + 1e-6)
            errors.append(np.mean((outputs[image, patch - 1] - target) ** 2))
    assert found.item() == pytest.approx(np.mean(errors), rel=1e-5)
    model.corruption = lambda images, indices=None: corruption
    trained = sum(errors) / (3 * (N / 2 if prefix else N - 1))
    assert model.training_loss((images,)).item() == pytest.approx(trained, rel=1e-5)


def test_gradients_of_a_batch_are_the_mean_of_its_parts(make: Make) -> None:
    model = make().double()
    images = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    sizes, gradients = (1, 15, 8, 3), []
    for parts in ([slice(0, 4)], [slice(0, 2), slice(2, 4)]):
        model.zero_grad()
        for part in parts:
            model.corruption = lambda _, part=part: of_prefix(model, *sizes[part])
            (model.training_loss((images[part],)) / len(parts)).backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.requires_grad])
    for whole, summed in zip(*gradients, strict=True):
        torch.testing.assert_close(whole, summed)


def test_prefixes_are_uniform_from_one_to_all_but_one_patch(make: Make) -> None:
    model = make()
    uniforms = torch.rand(15_000, 1, N, generator=torch.Generator().manual_seed(0))
    uniforms[0], uniforms[1] = 0, 1 - 2**-24  # the smallest and the largest draw
    sizes = model.draw(uniforms).chosen[:, 0]
    assert sizes[0] == 1 and sizes[1] == N - 1
    counts = torch.bincount(sizes)
    assert len(counts) == N and not counts[0] and (counts[1:] - 1000).abs().max() < 150
    torch.manual_seed(0)
    images = torch.zeros(2, 3, 16, 16)
    drawn = [model.corruption(images).chosen for _ in range(20)]
    assert len({tuple(sizes[:, 0].tolist()) for sizes in drawn}) > 10  # also within a batch
