"""A run of `discreet train` whose processes are killed; arguments: the job, the number of processes, a seed."""

from __future__ import annotations

import json
import os
import random
import sys

import torch

from discreet import data as tasks
from discreet.runs import RunConfig, RunFolder, complete, plan_of, train
from supervisor import charges, supervise

if __name__ == "__main__":
    torch.set_num_threads(1)
    settings, kills, place = json.loads(sys.argv[1])
    config, ranks, chance = RunConfig.from_json(settings), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    ledger = RunFolder(config.out).ledger
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)  # imports what the children need
    plan_of(complete(config), tasks.load("digits")).certificate()

    def work(rank: int) -> None:
        file = os.open(f"{place}/released-{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        train(config, on_progress=lambda news: os.write(file, b"%d %d\n" % (news.step, charges(ledger) >= news.step)))

    supervise(work, ledger, steps=config.steps or 0, ranks=ranks, kills=kills, chance=chance)
