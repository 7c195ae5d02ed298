"""The tool that trains victims: a training that was stopped resumes to the same bits."""

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs fedzo[torch]")
pytest.importorskip("onnx", reason="needs onnx")
sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import train_victim  # noqa: E402

RECIPE = train_victim.Recipe(epochs=2, learning_rate=0.01, weight_decay=1e-4, batch_size=8)


def train(kept, seed=0):
    torch.manual_seed(0)
    network = train_victim.carlini()
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (16, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 10, (16,), generator=generator)
    train_victim.train(network, RECIPE, images, labels, seed, kept)
    return network.state_dict()


@pytest.mark.slow
def test_stopped_training_resumes(tmp_path, monkeypatch):
    """The weights, momenta, schedule, order of images, shifts and dropout are all in the file."""
    whole = train(tmp_path / "whole.training")
    replace = Path.replace

    def stop(self, target):
        replace(self, target)
        raise KeyboardInterrupt

    kept = tmp_path / "half.training"
    monkeypatch.setattr(Path, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        train(kept)
    monkeypatch.setattr(Path, "replace", replace)
    again = train(kept)
    assert all(torch.equal(whole[key], again[key]) for key in whole)
    with pytest.raises(SystemExit, match="is of another recipe or seed: remove it"):
        train(kept, seed=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch's, of its own exporter
def test_weights_in_half_are_the_same_network(tmp_path):
    """A file of weights that were rounded to float16 answers as before, at half the size."""
    from fedzo import models

    pytest.importorskip("onnxscript", reason="needs onnxscript")
    torch.manual_seed(0)
    network = train_victim.carlini()
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(weight.half().float())
    path = tmp_path / "network.onnx"
    train_victim.write_onnx(network, path)
    whole, images = path.stat().st_size, torch.rand(3, 3, 32, 32)
    train_victim.halve(path)
    assert path.stat().st_size < 0.52 * whole
    answers = models.load(str(path))(images.numpy())
    wanted = network(images).detach().numpy()  # to the rounding of sums in another order
    np.testing.assert_allclose(answers, wanted, rtol=1e-3, atol=1e-4)
