"""scikit-learn classifiers: rows, pipelines, the order of the classes."""

import numpy as np
import pytest

from fedzo.models import SklearnModel
from raising import fails, rejects

pytest.importorskip("sklearn")


@pytest.fixture
def data():
    random = np.random.default_rng(4)
    return random.random((60, 12)), random.choice(["pear", "apple", "fig"], 60)


def test_labels_are_those_that_the_estimator_was_fitted_to(data):
    from sklearn.tree import DecisionTreeClassifier

    inputs, names = data
    tree = DecisionTreeClassifier(random_state=0).fit(inputs, names)
    model = SklearnModel(tree)
    expected = [["apple", "fig", "pear"].index(name) for name in names]
    assert model.predict(inputs).tolist() == names.tolist()  # a full tree knows its samples
    assert model.columns(names).tolist() == model(inputs).argmax(axis=1).tolist() == expected
    with rejects("labels"):
        model.columns(["fig", "plum"])
    assert model.log_scores_of(model(inputs)).min() == np.log(np.finfo(np.float64).tiny)


def test_images_and_rows_go_through_a_pipeline_alike(data):
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    inputs, names = data
    pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(inputs, names)
    model = SklearnModel(pipeline, input_shape=(3, 4))
    for batch in (inputs, inputs.reshape(-1, 3, 4)):
        np.testing.assert_array_equal(model(batch), pipeline.predict_proba(inputs))
    assert SklearnModel(pipeline).input_shape == (12,)
    with rejects("input_shape"):
        SklearnModel(pipeline, input_shape=(5,))


def test_an_estimator_that_is_not_fitted_or_not_for_such_inputs(data):
    from sklearn.linear_model import LogisticRegression

    with fails("run-failed"):
        SklearnModel(LogisticRegression())(data[0])
    with fails("not-an-estimator"):
        SklearnModel(LogisticRegression)


def test_an_estimator_that_cannot_tell_how_likely_a_class_is_answers_labels(data):
    from sklearn.svm import LinearSVC

    fitted = LinearSVC().fit(*data)
    model = SklearnModel(fitted)
    assert model.outputs == "labels"
    assert model.predict(data[0]).tolist() == fitted.predict(data[0]).tolist()
    scores = model(data[0])
    assert scores.shape == (len(data[0]), len(fitted.classes_))
    assert set(scores.ravel()) == {0.0, 1.0}
    with fails("no-such-outputs"):
        SklearnModel(fitted, outputs="probabilities")
    with rejects("outputs"):
        SklearnModel(fitted, outputs="logits")
