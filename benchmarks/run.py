"""`make bench`: fedzo against PyTorch as its users write it, the kernels, how a round grows.

All versions do one round of the paper's softmax setting (N=50, M=20, H=5, b1=25, b2=20) on
the same data, in turns, in this process, and the medians are compared.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch

import parts
import scaling
import torch_batched
import torch_textbook
from timing import PAPER, medians, one_round, paper_problem


def main() -> None:
    problem = paper_problem()
    torch.set_num_threads(2)
    setting = {
        "inputs": problem.data.train_inputs,
        "labels": problem.data.train_labels,
        "parts": problem.parts,
        "participants": PAPER.participants,
        "lr": PAPER.learning_rate,
        "mu": PAPER.smoothing,
        "b1": PAPER.batch_size,
        "b2": PAPER.directions,
        "local_steps": PAPER.local_steps,
    }
    textbook, batched = torch_textbook.Round(**setting), torch_batched.Round(**setting)
    engine, ours = one_round(problem, PAPER, 2)
    with engine:
        times = medians(
            {"fedzo": ours, "textbook": textbook, "batched": batched},
            repeats=2 if "--quick" in sys.argv else 10,
            burst=3,
        )
    print(f"one softmax round on {problem.data.name}, 2 workers / torch threads")
    for name, what in (("textbook", "PyTorch, textbook loop"), ("batched", "PyTorch, batched")):
        print(
            f"  {what:<31} {times[name] * 1e3:8.1f} ms   "
            f"fedzo is {times[name] / times['fedzo']:.1f} x faster"
        )
    print(f"  {'fedzo':<31} {times['fedzo'] * 1e3:8.1f} ms\n")
    quick = "--quick" in sys.argv
    parts.kernels_and_round(problem, quick)
    parts.uplinks(problem, times["fedzo"], 3 if quick else 20)
    parts.attack_round(1 if quick else 5)
    scaling.main(quick)


if __name__ == "__main__":
    main()
