"""DEFINITIONS.md again, in naive numpy: what the product is compared with. Nothing here is quick, everything here is short.

Rewards are [T, k], per-step gammas [T, k] (see `per_step`), frames [T + 1, ...]: the last one is the final observation's.
"""

from __future__ import annotations

import numpy as np


def per_step(gamma, steps: int, dims: int) -> np.ndarray:
    """gamma of every step and reward dimension, [T, k], from a number, one number a dimension, or a field's values [T] or [T, k]."""
    gamma = np.asarray(gamma, np.float64)
    if gamma.ndim == 1 and gamma.shape[0] == steps and steps != dims:
        gamma = gamma[:, None]
    return np.array(np.broadcast_to(gamma, (steps, dims)))


def n_step(reward: np.ndarray, terminated: bool, n: int, gamma: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """DEFINITIONS 2: (reward sums [T, k], discounts [T, k], next indices [T])."""
    steps, dims = reward.shape
    total, discount, following = np.zeros((steps, dims)), np.zeros((steps, dims)), np.zeros(steps, np.int64)
    for t in range(steps):
        m = min(n, steps - t)
        power = np.ones(dims)
        for k in range(m):
            total[t] += power * reward[t + k]
            power = power * gamma[t + k]
        following[t] = t + m
        discount[t] = 0 if terminated and t + m == steps else power
    return total, discount, following


def lambda_return(reward: np.ndarray, value: np.ndarray, last_value, terminated: bool, gamma: np.ndarray, lam: float) -> np.ndarray:
    """DEFINITIONS 5, by its definition: the (1 - lambda) lambda^(n-1) mixture of all n-step returns. Quadratic, and no recursion to get wrong."""
    steps, dims = reward.shape
    values = np.concatenate([value, np.reshape(last_value, (1, dims)) * (0 if terminated else 1)])
    q = np.zeros((steps, dims))
    for t in range(steps):
        total, power = np.zeros(dims), np.ones(dims)
        for n in range(1, steps - t + 1):
            total = total + power * reward[t + n - 1]
            power = power * gamma[t + n - 1]
            share = lam ** (n - 1) * (1 - lam if n < steps - t else 1)
            q[t] += share * (total + power * values[t + n])
    return q


def advantage(reward: np.ndarray, value: np.ndarray, last_value, terminated: bool, gamma: np.ndarray, lam: float) -> np.ndarray:
    """Generalized advantage (DEFINITIONS 5): the sum of discounted one-step errors."""
    steps, dims = reward.shape
    values = np.concatenate([value, np.reshape(last_value, (1, dims)) * (0 if terminated else 1)])
    delta = reward + gamma * values[1:] - value
    found = np.zeros((steps, dims))
    for t in range(steps):
        power = np.ones(dims)
        for u in range(t, steps):
            found[t] += power * delta[u]
            power = power * gamma[u] * lam
    return found


def stack(frames: np.ndarray, t: int, size: int, pad: str) -> np.ndarray:
    """DEFINITIONS 3: frames t - size + 1 .. t, oldest first."""
    rows = []
    for at in range(t - size + 1, t + 1):
        rows.append(frames[at] if at >= 0 else frames[0] if pad == "repeat" else np.zeros_like(frames[0]))
    return np.stack(rows)


def windows(steps: int, length: int, stride: int, tail: str) -> list[tuple[int, int]]:
    """DEFINITIONS 4: (start, real steps) of a finished episode's windows. The first one that reaches the end is the last one.

    Where windows are full by choice (shift, drop), an episode shorter than one has none.
    """
    found = []
    for start in range(0, steps, stride):
        if start + length < steps:
            found.append((start, length))
            continue
        if start + length == steps or tail == "pad":
            found.append((start, min(length, steps - start)))
        elif tail == "shift" and steps >= length:
            found.append((steps - length, length))
        break
    return list(dict.fromkeys(found))


def mixed(errors, eta: float) -> float:
    """R2D2's priority of a sequence (DEFINITIONS 4), over the part after burn-in."""
    errors = np.abs(np.asarray(errors, np.float64))
    return float(eta * errors.max() + (1 - eta) * errors.mean())


def td_error(reward: np.ndarray, values: np.ndarray, baseline: np.ndarray, terminated: bool, n: int, gamma: np.ndarray, coefficients) -> np.ndarray:
    """Ape-X's signal (DEFINITIONS 6, source "td") of every step, [T]; values [T + 1, k], baseline [T, k]."""
    total, discount, following = n_step(reward, terminated, n, gamma)
    return np.abs((total + discount * values[following] - baseline) @ np.asarray(coefficients, np.float64))


def return_error(q: np.ndarray, value: np.ndarray, coefficients, ma: float = 1.0) -> np.ndarray:
    """memoire's signal (DEFINITIONS 6, source "return") of every step, [T]."""
    return np.abs((q - value) @ np.asarray(coefficients, np.float64)) / np.sqrt(ma / 2)


def weight(p, alpha: float) -> np.ndarray:
    """DEFINITIONS 6: w = p^alpha; an item with p = 0 is never drawn, whatever alpha is."""
    p = np.asarray(p, np.float64)
    return np.where(p > 0, np.power(np.where(p > 0, p, 1.0), alpha), 0.0)


def two_stage(weights: dict[str, list[float]]) -> tuple[np.ndarray, dict[str, float]]:
    """DEFINITIONS 7: (P of every item of the union, in order; every actor's share)."""
    total = sum(sum(w) for w in weights.values())
    return np.concatenate([np.asarray(w) / total for w in weights.values()]), {k: sum(w) / total for k, w in weights.items()}


def importance(p, population: int, beta: float) -> np.ndarray:
    """DEFINITIONS 6: (N P)^-beta, not normalised."""
    return (population * np.asarray(p)) ** -beta
