"""Filters, positions and features, against NumPy's singular values and loops."""

import numpy as np
import pytest
import torch

from tests.models.small_models import random_images, small_bit, small_hybrid, small_vit
from vit.errors import UserError
from vit.extensions import inspection


def test_filters_are_principal_components() -> None:
    model = small_vit()
    flat = model.patch_embed.proj.weight.detach().double().numpy().reshape(32, -1)
    variances, vectors = np.linalg.eigh(np.cov(flat.T))
    filters = inspection.embedding_filters(model, 5)
    assert filters.shape == (5, 3, 8, 8)
    for i, component in enumerate(filters.double().numpy().reshape(5, -1)):
        assert abs(component @ vectors[:, -1 - i]) == pytest.approx(1, abs=1e-4)
    assert (np.diff(variances[-5:]) > 0).all()


@pytest.mark.parametrize("slot", [True, False])
def test_positions_are_compared_without_the_class_token(slot: bool) -> None:
    model = small_vit(image_size=(16, 24), pos_embed_class_slot=slot)
    table = model.get_parameter("pos_embed").detach().double().numpy()[0, int(slot) :]
    similarity = inspection.position_similarity(model)
    assert similarity.shape == (2, 3, 2, 3)
    for i, one in enumerate(table):
        for j, other in enumerate(table):
            cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
            value = similarity[i // 3, i % 3, j // 3, j % 3].item()
            assert value == pytest.approx(cosine, abs=1e-5)


def test_similarity_is_the_cosine_of_features() -> None:
    model, images = small_vit(), random_images(2, 3, 32, 48)
    [maps] = model.intermediate_layers(images, [1])
    maps = maps.detach().double().numpy()
    result = inspection.patch_similarity(model, images, (2, 5), layer=1)
    for b, y, x in np.ndindex(2, 4, 6):
        one, other = maps[b, :, 2, 5], maps[b, :, y, x]
        cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
        assert result[b, y, x].item() == pytest.approx(cosine, abs=1e-5)


def test_colours_are_principal_components_of_the_batch() -> None:
    model, images = small_vit(), random_images(2, 3, 32, 48)
    [maps] = model.intermediate_layers(images)
    flat = maps.detach().double().permute(0, 2, 3, 1).reshape(48, -1).numpy()
    _, _, components = np.linalg.svd(flat - flat.mean(0), full_matrices=False)
    colours = inspection.patch_colours(model, images)
    assert colours.shape == (2, 4, 6, 3)
    assert colours.min() == 0 and colours.max() == 1
    for channel in range(3):
        values = flat @ components[channel]
        shown = colours[..., channel].flatten().numpy()
        inside = (shown > 0) & (shown < 1)
        assert inside.sum() > 40
        assert abs(np.corrcoef(values[inside], shown[inside])[0, 1]) == pytest.approx(1, abs=1e-5)


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(UserError, match="no RGB filters"):
        inspection.embedding_filters(small_hybrid())
    with pytest.raises(UserError, match="cannot be shown as RGB"):
        inspection.embedding_filters(small_vit(in_channels=4))
    with pytest.raises(UserError, match="no position embeddings"):
        inspection.position_similarity(small_vit(pos_embed="none"))
    for function in (inspection.embedding_filters, inspection.position_similarity):
        with pytest.raises(UserError, match="ResNet has no attention"):
            function(small_bit())
    with pytest.raises(UserError, match="outside the 3 layers"):
        inspection.patch_colours(small_vit(), torch.zeros(1, 3, 32, 32), layer=3)
