"""FedAvg as Flower's tutorials write it; the time of every round goes to a file."""

import json
import time
from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from plain.client_app import model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    nodes, times = int(context.run_config["nodes"]), []
    strategy = FedAvg(min_train_nodes=nodes, min_evaluate_nodes=nodes, min_available_nodes=nodes)
    rounds = int(context.run_config["rounds"])
    strategy.start(
        grid,
        ArrayRecord(model().state_dict()),
        rounds,
        evaluate_fn=lambda round, arrays: times.append(time.time()),
    )
    Path(str(context.run_config["times"])).write_text(json.dumps(times))
