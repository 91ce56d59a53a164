"""The rows of `vit compare`."""

from vit.compute.comparison import Comparison, model_rows


def test_pytorchs_counter_and_torchvision_are_compared_with_the_formula() -> None:
    models = ("vit_ti16", "torchvision/resnet18")
    comparison = Comparison(models=models, image_size=[(32, 32)], count=True)
    (ours, theirs), notes = model_rows(comparison)
    assert ours["counted_flops"] == ours["flops"]
    assert ours["counted_training_flops"] == ours["training_flops"]
    assert theirs["model"] == "torchvision/resnet18" and theirs["params"] == 11_689_512
    assert "torch.utils.flop_counter counts exactly these operations." in notes
    assert theirs["activation_bytes_checkpointing"] is None
