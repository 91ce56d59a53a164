"""The text tables of `vit compare` and `vit bench`."""

from vit.extensions.compute.tables import amount


def test_amounts_have_four_digits() -> None:
    values = (0.0000442, 0.00597, 0.1642, 4.4092, 17.564, 632.05, 4256.4, 0)
    shown = ["4.42e-05", "0.00597", "0.164", "4.409", "17.56", "632.0", "4,256", "0"]
    assert [amount(value) for value in values] == shown
