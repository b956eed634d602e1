"""The whole of memsvc in one process: an embedded server, an actor that plays CartPole at random, a learner that draws and sends priorities back."""

import gymnasium as gym

import memsvc

step = {"obs": {"dtype": "float32", "shape": [4]}, "action": {"dtype": "int64"}, "reward": {"dtype": "float32"}}
table = {"name": "replay", "item": {"kind": "transition", "n_step": 3, "next": ["obs"]}, "priority": {"source": "max"}, "limits": {"min_items": 100}}
config = memsvc.Config.from_dict({"server": {"address": "tcp://127.0.0.1:0", "memory": "64MiB"}, "step": step, "table": [table]})
env = gym.make("CartPole-v1")
with memsvc.Server(config) as server, server.actor(name="actor-0") as actor, server.learner(table="replay", batch_size=32) as learner:
    obs = env.reset(seed=0)[0]
    for _ in range(500):
        action = env.action_space.sample()
        following, reward, terminated, truncated, info = env.step(action)
        actor.add(obs=obs, action=action, reward=float(reward))
        obs = following
        if terminated or truncated:
            actor.end_episode(terminated=terminated, final={"obs": obs})
            obs = env.reset()[0]
    actor.flush(timeout=10)
    batch = learner.sample(timeout=10)
    learner.update_priorities(batch.keys, abs(batch["reward"] - batch["reward"].mean()))
    print({name: (array.dtype.name, array.shape) for name, array in batch.items()}, "drawn from", batch.population)
