"""A PyTorch DQN learner for a daemon: `python learner.py [ADDRESS] [UPDATES]`.

Draws from what actor.py records, sends priorities back and publishes its network. Another framework takes PyTorch's place by other lines for the
network and its loss: a batch is a mapping of names to numpy arrays, and published parameters are arrays of any framework.
"""

from __future__ import annotations

import contextlib
import copy
import sys

import torch
from memsvc_client import Learner
from memsvc_client.adapters.torch import as_tensors, publish
from torch import nn

TARGET_EVERY = 200
PUBLISH_EVERY = 10


def main(address: str = "tcp://127.0.0.1:7700", updates: str = "10000") -> None:
    """Makes that many updates, each on a batch that the server draws from what all actors remember."""
    torch.set_num_threads(1)
    network = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2))
    target = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    with Learner(address, table="replay", batch_size=128) as learner:
        version = publish(learner, network)
        for update in range(1, int(updates) + 1):
            batch = learner.sample(timeout=60)  # raises NotReady, with the reason, if there is still too little to draw from
            tensors = as_tensors(batch)
            with torch.no_grad():  # `reward` is the 3-step sum already, `discount` is gamma^3, less near the end, and 0 where the episode terminated
                wanted = tensors["reward"] + tensors["discount"] * target(tensors["next_obs"]).max(1).values
            errors = wanted - network(tensors["obs"]).gather(1, tensors["action"][:, None])[:, 0]
            loss = (tensors["weights"] * nn.functional.huber_loss(errors, torch.zeros_like(errors), reduction="none")).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            learner.update_priorities(batch.keys, errors.detach().abs() + 1e-3)
            if update % PUBLISH_EVERY == 0:
                version = publish(learner, network)
            if update % TARGET_EVERY == 0:
                target.load_state_dict(network.state_dict())
                print(f"{update:,} updates, version {version}, loss {float(loss.detach()):.4f}, drawn from {batch.population:,} items", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends it like the last update
        main(*sys.argv[1:])
