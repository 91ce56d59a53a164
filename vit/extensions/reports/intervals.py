"""Intervals of shares, and of the difference of two shares of the same images."""

from dataclasses import dataclass

Z_95 = 1.959963984540054
"""Standard normal quantile of a two-sided 95 % interval."""


def wilson_interval(hits: int, total: int) -> tuple[float, float]:
    """95 % confidence interval of the proportion hits / total (Wilson, 1927).

    It stays in [0, 1], and does not collapse to a point at 0 or `total` hits.
    """
    from scipy.stats import binomtest  # slow to import; comes with scikit-learn

    interval = binomtest(hits, total).proportion_ci(0.95, method="wilson")
    return interval.low, interval.high


@dataclass(frozen=True)
class Paired:
    """The answers of two models to the same images."""

    count: int
    before: int
    """Images that the first model names rightly."""
    lost: int
    """Of these, those that the second names wrongly."""
    gained: int
    """Named wrongly by the first and rightly by the second."""

    @property
    def after(self) -> int:
        """Images that the second model names rightly."""
        return self.before - self.lost + self.gained

    @property
    def drop(self) -> float:
        """Points of accuracy that the second model loses."""
        return 100 * (self.lost - self.gained) / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """95 % of the drop: adjusted Wald of paired proportions (Bonett and Price, 2012), which
        does not collapse where all answers are equal."""
        lost, gained, count = self.lost + 1, self.gained + 1, self.count + 2
        difference = (lost - gained) / count
        spread = Z_95 * ((lost + gained - (lost - gained) ** 2 / count) ** 0.5 / count)
        return 100 * (difference - spread), 100 * (difference + spread)

    @property
    def p_value(self) -> float:
        """P-value of McNemar's exact test that both models are right equally often (two-sided)."""
        from scipy.stats import binomtest

        changed = self.lost + self.gained
        return float(binomtest(self.gained, changed).pvalue) if changed else 1.0

    def sees(self, points: float) -> bool:
        """The images are enough to tell a drop of so many points from none."""
        low, high = self.interval
        return (high - low) / 2 <= points
