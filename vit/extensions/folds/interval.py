"""The interval of the scores of folds, for other images."""

import math
import statistics
from collections.abc import Sequence


def corrected_interval(scores: Sequence[float], ratios: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean of the scores of k folds in [0, 1].

    The corrected resampled t-test of Nadeau and Bengio (Machine Learning 52, 2003, section 3):
    the variance of the scores times 1 / k + n_test / n_train, as the runs share training images,
    and Student's t with k - 1 degrees of freedom. `ratios`: n_test / n_train of each fold.
    """
    from scipy.stats import t  # slow to import; comes with scikit-learn

    count, mean = len(scores), statistics.mean(scores)
    spread = statistics.variance(scores) * (1 / count + statistics.mean(ratios))
    half = float(t.ppf(0.975, count - 1)) * math.sqrt(spread)
    return max(0.0, mean - half), min(1.0, mean + half)
