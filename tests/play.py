"""Random episodes played into a Memory, and what DEFINITIONS says every item of them is. Every step carries its `id`: a row tells whose it is."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import reference as ref


@dataclass
class Episode:
    """What was recorded: one list of values a field, and how it ended."""

    env: int
    steps: dict[str, list]
    length: int = 0  # planned
    end: tuple[bool, bool] = (False, False)  # planned: terminated, truncated
    final: dict | None = None
    ended: bool = False
    terminated: bool = False
    priorities: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    memo: dict = field(default_factory=dict)

    @property
    def drawable(self) -> int:
        """T: all steps of a finished episode, all but the newest of another."""
        added = len(self.steps["id"])
        return added if self.ended else max(0, added - 1)

    def frames(self, name: str) -> np.ndarray:
        """A field's values at 0 .. T; the last is the final observation's."""
        values = list(self.steps[name])
        if self.ended:
            values.append(self.final[name] if self.final and name in self.final else values[-1])
        return np.array(values)

    def matrix(self, name: str, extra: int = 0) -> np.ndarray:
        """A field's first T + extra values as float64 [., k]."""
        return self.frames(name)[: self.drawable + extra].reshape(self.drawable + extra, -1).astype(np.float64)

    def quantities(self, table: dict) -> dict[str, np.ndarray]:
        """The computed columns of all steps of the episode as it stands now, [T, k], and the n-step items' next indices."""
        known = (self.drawable, self.ended, repr(table["item"]), repr(table["returns"]))
        if known not in self.memo:
            reward, made = self.matrix("reward"), {}
            setting = table["item"]["gamma"]
            gamma = self.gamma(setting)
            made["reward"], made["discount"], made["next"] = ref.n_step(reward, self.terminated, table["item"]["n_step"], gamma)
            made["step discount"] = gamma.copy()
            if self.terminated:
                made["step discount"][-1] = 0
            shape = np.shape(self.steps[setting][0]) if isinstance(setting, str) else np.shape(setting)  # one gamma, one discount
            for name in ("discount", "step discount"):
                made[name] = made[name].reshape(self.drawable, -1)[:, : int(np.prod(shape))].reshape(self.drawable, *shape)
            if table["returns"]:
                values, gamma, lam = self.matrix("value", 1), self.gamma(table["returns"]["gamma"]), table["returns"]["lambda"]
                made["return"] = ref.lambda_return(reward, values[:-1], values[-1], self.terminated, gamma, lam)
                made["advantage"] = ref.advantage(reward, values[:-1], values[-1], self.terminated, gamma, lam)
            self.memo = {known: made}
        return self.memo[known]

    def gamma(self, gamma) -> np.ndarray:
        """Per-step gamma [T, k] from a setting."""
        dims = self.matrix("reward").shape[1]
        if isinstance(gamma, str):
            return np.array(np.broadcast_to(self.matrix(gamma), (self.drawable, dims)))
        return ref.per_step(gamma, self.drawable, dims)


class Player:
    """Plays the environments of one actor, interleaved at random, and remembers every step by id."""

    def __init__(self, peer, fields, rng, envs: int = 1, lengths=(1, 50), first_id: int = 0, integer: bool = False, given: bool = False) -> None:
        self.peer, self.fields, self.rng, self.integer, self.given = peer, fields, rng, integer, given
        self.lengths, self.next_id, self.version = lengths, first_id, -1
        self.by_id: dict[int, tuple[Episode, int]] = {}
        self.episodes: list[Episode] = []
        self.finished: list[Episode] = []
        self.open = [self._begin(env) for env in range(envs)]

    def _begin(self, env: int) -> Episode:
        ends = [(True, False), (False, True), (True, True)]
        low, high = self.lengths
        episode = Episode(env, {f[0]: [] for f in self.fields}, int(self.rng.integers(low, high + 1)), ends[self.rng.integers(3)])
        self.episodes.append(episode)
        return episode

    def value(self, name: str, dtype: str, shape: tuple) -> np.ndarray:
        """A random value of a field."""
        kind = np.dtype(dtype)
        if kind.kind == "f" and name.startswith("gamma"):
            return self.rng.choice([0.25, 0.5, 1.0], shape).astype(kind) if self.integer else self.rng.uniform(0.5, 1, shape).astype(kind)
        if kind.kind == "f" and not self.integer:
            return self.rng.normal(size=shape).astype(kind)
        if kind.kind == "b":
            return self.rng.integers(0, 2, shape).astype(kind)
        return self.rng.integers(0, 100, shape).astype(kind)

    def step(self) -> dict:
        """A random step with the next id."""
        made = {name: np.asarray(self.value(name, dtype, shape)) for name, dtype, shape in self.fields}
        made["id"] = np.asarray(self.next_id, np.int64)
        self.next_id += 1
        return made

    def last(self) -> dict:
        """Random final values of everything but the id."""
        return {name: np.asarray(self.value(name, dtype, shape)) for name, dtype, shape in self.fields if name != "id"}

    def _record(self, env: int, step: dict, priority: float) -> None:
        episode = self.open[env]
        self.by_id[int(step["id"])] = (episode, len(episode.steps["id"]))
        for name, value in step.items():
            episode.steps[name].append(value)
        episode.priorities.append(priority)
        episode.versions.append(self.version)

    def _ended(self, env: int, terminated: bool, final: dict | None) -> None:
        episode = self.open[env]
        episode.ended, episode.terminated, episode.final = True, terminated, final
        self.finished.append(episode)
        self.open[env] = self._begin(env)

    def add(self, env: int = 0) -> None:
        """One step of one environment, and the end of its episode where that is due, by single calls."""
        step, priority = self.step(), float(self.rng.uniform(0.1, 2))
        self.peer.memory.add(env, step, priority if self.given else None, self.version)
        self._record(env, step, priority)
        if len(self.open[env].steps["id"]) >= self.open[env].length:
            self.finish(env)

    def finish(self, env: int = 0) -> None:
        """Ends the episode of one environment as planned; the final values are given, or left out where that is allowed."""
        terminated = self.open[env].end[0]
        final = self.last() if not terminated or self.rng.integers(2) else None
        self.peer.memory.end(env, terminated, final)
        self._ended(env, terminated, final)

    def add_batch(self, envs: list[int] | None = None, inactive: int = -1) -> None:
        """One step of several environments by one call, their ends with it. `inactive` is left out."""
        ids = list(range(len(self.open))) if envs is None else envs
        steps, priorities = [self.step() for _ in ids], self.rng.uniform(0.1, 2, len(ids))
        done = [len(self.open[e].steps["id"]) + 1 >= self.open[e].length and e != inactive for e in ids]
        terminated = np.array([d and self.open[e].end[0] for d, e in zip(done, ids, strict=True)])
        truncated = np.array([d and self.open[e].end[1] for d, e in zip(done, ids, strict=True)])
        lasts = [self.last() for _ in ids]
        final = {n: np.stack([x[n] for x in lasts]) for n in lasts[0]} if any(done) and (truncated.any() or self.rng.integers(2)) else None
        self.peer.memory.add_batch(
            None if envs is None else np.array(ids, np.int64),
            None if inactive < 0 else np.array([e != inactive for e in ids]),
            {n: np.stack([s[n] for s in steps]) for n in steps[0]},
            priorities if self.given else None,
            self.version,
            terminated,
            truncated,
            final,
        )
        for i, env in enumerate(ids):
            if env != inactive:
                self._record(env, steps[i], float(priorities[i]))
                if done[i]:
                    self._ended(env, bool(terminated[i]), lasts[i] if final is not None else None)

    def play(self, ticks: int) -> None:
        """Ticks of a random kind: one environment alone, all of them, or some, one of them perhaps inactive."""
        envs = len(self.open)
        for _ in range(ticks):
            self.version += int(self.rng.integers(2))
            kind = self.rng.integers(3)
            if kind == 0:
                self.add(int(self.rng.integers(envs)))
            elif kind == 1:
                self.add_batch(None, int(self.rng.integers(-1, envs)) if envs > 1 else -1)
            else:
                self.add_batch(sorted(self.rng.choice(envs, self.rng.integers(1, envs + 1), replace=False).tolist()))


def item(table: dict, episode: Episode, t: int, span: int = 0) -> dict[str, np.ndarray]:
    """Every column of the item that begins at step t of `episode` as it stands now. Sequences: `span` real steps."""
    made, kind, total = table["item"], table["item"]["kind"], episode.drawable
    names = list(episode.steps)
    out: dict[str, np.ndarray] = {}
    real = span if kind == "sequence" else 1

    def spread(values: np.ndarray) -> np.ndarray:
        if kind != "sequence":
            return values[t]
        rows = np.zeros((made["length"], *values.shape[1:]), values.dtype)
        rows[:real] = values[t : t + real]
        return rows

    following = t + real
    for name in names:
        frames = episode.frames(name)
        if name in made["initial"]:
            out[f"initial_{name}"] = frames[t]
        elif name in made["stack"]:
            out[name] = ref.stack(frames, t, made["frame_stack"], made["pad"])
        else:
            out[name] = spread(frames)
    shape, quantities = np.shape(episode.steps["reward"][0]), episode.quantities(table)
    if kind == "transition":
        following = int(quantities["next"][t])
        out["reward"], out["discount"] = quantities["reward"][t].reshape(shape), quantities["discount"][t]
    elif kind == "sequence":
        out["discount"] = spread(quantities["step discount"])
        out["mask"], out["length"] = np.arange(made["length"]) < real, np.int32(real)
    for name in made["next"]:
        frames = episode.frames(name)
        out[f"next_{name}"] = ref.stack(frames, following, made["frame_stack"], made["pad"]) if name in made["stack"] else frames[following]
    if table["returns"]:
        for name in ("return", "advantage"):
            out[name] = spread(quantities[name].reshape(total, *shape))
    return out


def priorities(table: dict, episode: Episode) -> np.ndarray:
    """The steps' priorities by the table's source (not "max"), [T]."""
    setting, made = table["priority"], table["item"]
    if setting["source"] == "given":
        return np.array(episode.priorities[: episode.drawable])
    reward, values = episode.matrix("reward"), episode.matrix("value", 1)
    if setting["source"] == "td":
        baseline = episode.matrix(setting["baseline"])
        gamma = episode.gamma(made["gamma"])
        return ref.td_error(reward, values, baseline, episode.terminated, made["n_step"], gamma, setting["coefficients"])
    returns = table["returns"]
    q = ref.lambda_return(reward, values[:-1], values[-1], episode.terminated, episode.gamma(returns["gamma"]), returns["lambda"])
    return ref.return_error(q, values[:-1], setting["coefficients"])


def check(table: dict, batch, by_id: dict, exact: bool = False) -> list[int]:
    """Compares every row of a batch with `item`. Returns the rows' ids."""
    ids = batch["id"]
    starts = ids[:, 0] if ids.ndim > 1 else ids
    _, first, which = np.unique(starts, return_index=True, return_inverse=True)
    for name in set(batch.columns) - {"keys", "probabilities", "weights", "versions"}:  # rows of one item are equal to the bit
        rows = np.ascontiguousarray(batch[name]).reshape(len(starts), -1).view(np.uint8)
        assert (rows == rows[first][which]).all(), name
    assert len(set(zip(starts.tolist(), batch["keys"].tolist(), strict=True))) == len(first)
    for i in first.tolist():
        episode, t = by_id[int(starts[i])]
        truth = item(table, episode, t, int(batch["length"][i]) if "length" in batch.columns else 1)
        assert set(truth) | {"keys", "probabilities", "weights", "versions"} == set(batch.columns)
        for name, value in truth.items():
            got, told = batch[name][i], f"{name} of step {t} of an episode of {episode.drawable} steps, ended {episode.ended}"
            assert got.shape == np.shape(value), told
            value = np.asarray(value)
            same = np.array_equal(got, value.astype(got.dtype))
            if not same and value.dtype.kind == "f" and not exact:
                same = np.allclose(got, value, rtol=1e-6, atol=2e-6)
            assert same, f"{told}: {got} is not {value}"
        assert batch["versions"][i] == episode.versions[t]
    return starts.tolist()
