"""How far nodes are believed: who votes, and what a search's questions are answered with."""

import dataclasses

import numpy as np
import pytest
from flwr.app import ConfigRecord
from test_flower_federation import PROBLEM, QUICK, Nodes

import fedzo
from fedzo.algorithms import ALGORITHMS
from fedzo.core.tasks import Evaluate, Slopes
from fedzo.errors import Halted
from fedzo.flower import FlowerFederation, wire
from fedzo.flower.belief import Believed, clipped_losses
from fedzo.problems import Quadratic
from fedzo.uplinks import Robust


def believed(question, changes, settings=QUICK):
    """Return what is believed of all devices' answers, some of which were changed, and the rest."""
    work = dataclasses.replace(question, seed=5)
    found = {i: work.reply(PROBLEM, i) for i in range(6)}
    for device, values in changes.items():
        found[device] = found[device]._replace(values=values(found[device].values))
    checked = Believed(work, 8, fedzo.Ideal(), settings, dict.fromkeys(range(6), 1), 6)
    kept = {update.device: update.values for update in checked.updates(found)}
    return kept, {i: u.values for i, u in found.items()}, checked.refused


POINTS = Evaluate(np.array([np.zeros(8), np.ones(8)]))
QUESTIONS = {
    "points": POINTS,
    "stencil": Slopes(np.ones(8), np.full(8, 0.1), everyone=True, central=True),
    "shared out": Slopes(np.ones(8), np.full(8, 0.1), everyone=False, central=False),
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_honest_answers_are_taken_as_they_are(question):
    kept, told, refused = believed(question, {})
    assert not refused
    for device, values in told.items():
        assert np.array_equal(kept[device], values)


@pytest.mark.parametrize("lie", [-1e300, 1e300])
@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_vast_value_is_kept_within_bounds(question, lie):
    """Five times the spread around the median, at every point by itself."""

    def first(values):
        return np.concatenate([[lie], values[1:]])

    kept, told, _ = believed(question, {3: first})
    column = np.sort([told[i][0] for i in told])
    middle = column[2]  # the lower median of six
    spread = max(np.sort(np.abs(column - middle))[2], abs(middle))
    assert kept[3][0] == pytest.approx(middle + np.sign(lie) * 5 * spread, rel=1e-12)
    assert np.array_equal(kept[3][1:], told[3][1:])
    unclipped, _, _ = believed(question, {3: first}, dataclasses.replace(QUICK, clip=False))
    assert unclipped[3][0] == lie


def test_most_losses_are_zero():
    """The others' are not to be taken for lies."""
    losses = np.array([0.0, 0.0, 0.0, 0.0, 3.0, 5.0])
    assert np.array_equal(clipped_losses(losses, 5.0), losses)


def test_slopes_of_others_are_not_taken():
    def claims_all(values):
        return np.concatenate([values[:9], np.ones(8)])

    def adds_slopes(values):
        return values + np.concatenate([[0.0], np.ones(8), np.zeros(8)])

    _, _, refused = believed(QUESTIONS["shared out"], {1: claims_all, 4: adds_slopes})
    assert refused == dict.fromkeys((1, 4), "it claims slopes that it was not asked for")


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "clipped_mean"])
def test_slopes_that_are_shared_out_have_no_median(rule):
    """Each is one device's own: the others' zeros must not outvote it."""
    problem = Quadratic(dim=8, devices=6, dissimilarity=0.3)
    plain, robust = (
        fedzo.minimize(problem, algorithm=ALGORITHMS["lbfgs"](), uplink=uplink, rounds=30)
        for uplink in (fedzo.Ideal(), Robust(rule))
    )
    # The slopes that all devices measure at the start have another centre than their mean.
    assert robust.fun == pytest.approx(plain.fun, rel=0.05)
    assert robust.fun < 0.5 * robust.history[0]["train_loss"]


def test_node_without_a_binding_has_no_vote(tmp_path, caplog):
    """Two strangers that hold nothing would outvote the one node that holds all."""
    file = tmp_path / "nodes.toml"
    file.write_text('1 = "0-5"\n')
    grid = Nodes()

    def spoil(message, reply):
        if message.metadata.message_type == wire.HELLO:
            told = dict(reply.content["hello"])
            one = message.metadata.dst_node_id == 1
            changes = {} if one else {"fingerprint": "f" * 16, "dim": 3}
            held = list(range(6)) if one else []
            changes |= {"held": held, "sizes": [1] * len(held)}
            reply.content["hello"] = ConfigRecord({**told, **changes})
        return reply

    grid.spoil = spoil
    for settings in (QUICK, dataclasses.replace(QUICK, bindings=str(file))):
        assert FlowerFederation(grid, 5, fedzo.Ideal(), settings).dim == 8
    assert "node 2 is not taken: no devices are bound to it" in caplog.text
    grid.away = {1}
    with pytest.raises(Halted):
        FlowerFederation(grid, 5, fedzo.Ideal(), QUICK)
