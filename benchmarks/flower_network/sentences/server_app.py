"""The server's side: it has the same pretrained module, so that no model is ever sent."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

import fedzo
from fedzo.flower import FedzoStrategy, FlowerSettings
from sentences.client_app import Classifier

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings, module = context.run_config, Classifier()
    algorithm = fedzo.FedZO(
        learning_rate=1e-7,
        smoothing=0.5,
        directions=4,
        local_steps=1,
        batch_size=8,
        direction_kind="rademacher",
        shared_directions=True,
    )
    strategy = FedzoStrategy(
        algorithm,
        fedzo.Seeds(),
        settings=FlowerSettings(quorum=1.0, grace=900.0, patience=1800.0),
        evaluate_every=settings["rounds"],
        run_dir=settings["run-dir"],
        resume=settings["resume"],
    )
    names = [name for name, _ in module.named_parameters()]
    arrays = module.state_dict()
    start = ArrayRecord({name: arrays[name] for name in names})
    strategy.start(grid, start, num_rounds=settings["rounds"])
