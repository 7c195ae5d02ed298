"""
# A scikit-learn estimator for any loss

**For scikit-learn users.** A linear regression that minimises the loss you give it, smooth or not. It works with scikit-learn's
own tools: pipelines, cross-validation, grid searches.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted, validate_data

import fedzo


class ZeroOrderRegressor(RegressorMixin, BaseEstimator):
    """Minimises ``loss(residuals)`` over linear models, from its values only."""

    def __init__(self, loss, max_queries=3000):
        self.loss, self.max_queries = loss, max_queries

    def fit(self, X, y):
        X, y = validate_data(self, X, y)
        columns = np.column_stack([X, np.ones(len(X))])
        start = np.append(np.zeros(X.shape[1]), np.median(y))
        found = fedzo.minimize(
            lambda w: float(self.loss(y - columns @ w)), start, max_queries=self.max_queries
        )
        self.coef_, self.intercept_ = found.x[:-1], found.x[-1]
        return self

    def predict(self, X):
        check_is_fitted(self)
        return validate_data(self, X, reset=False) @ self.coef_ + self.intercept_


# %%
# One of ten targets is wrong by a factor of ten. The typical error of a prediction is the median.

X, y = load_diabetes(return_X_y=True)
wrong = np.random.default_rng(0).random(len(y)) < 0.1
y = np.where(wrong, 10 * y, y)


def truncated(residuals):
    """Return the mean absolute error, in which no sample counts for more than 150."""
    return np.mean(np.minimum(np.abs(residuals), 150))


models = {"least squares": LinearRegression(), "truncated error": ZeroOrderRegressor(truncated)}
errors = {
    name: -cross_val_score(
        make_pipeline(StandardScaler(), model), X, y, cv=5, scoring="neg_median_absolute_error"
    )
    for name, model in models.items()
}
print({name: round(float(each.mean()), 1) for name, each in errors.items()})
figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
for i, each in enumerate(errors.values()):
    axes.plot(np.full(5, i), each, "o", color="#0072B2", alpha=0.5, label="fold" if i else None)
    axes.plot(i, each.mean(), "D", color="#D55E00", label="mean" if i else None)
axes.set(xticks=[0, 1], xticklabels=list(errors), xlim=(-0.5, 1.5), ylabel="median absolute error")
axes.legend()
