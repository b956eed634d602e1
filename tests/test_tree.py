"""The 8-ary sum tree against a plain array: DEFINITIONS 6, DEMANDS 3."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from memsvc_core import SumTree
from scipy.stats import chisquare


def filled(weights, seed: int = 1, simd: bool = True) -> SumTree:
    weights = np.asarray(weights, np.float64)
    tree = SumTree(len(weights), seed, simd)
    tree.update(np.arange(len(weights)), weights)
    return tree


@pytest.mark.parametrize("simd", [True, False])
def test_one_positive_item_at_every_place_of_every_capacity(simd):
    for capacity in range(1, 71):
        tree = SumTree(capacity, capacity, simd)
        assert tree.total == 0
        assert tree.min_positive == 0
        for place in range(capacity):
            tree.update(np.array([place]), np.array([0.7]))
            assert tree.total == 0.7
            assert tree.min_positive == 0.7
            for stratified in (True, False):
                assert (tree.draw(9, stratified) == place).all()
            tree.update(np.array([place]), np.array([0.0]))


@pytest.mark.parametrize("simd", [True, False])
@pytest.mark.parametrize("capacity", [1, 2, 7, 8, 9, 63, 64, 65, 511, 513, 1000])
def test_random_updates_equal_a_plain_array(capacity, simd, rng):
    tree, naive = SumTree(capacity, 3, simd), np.zeros(capacity)
    for _ in range(60):
        n = int(rng.integers(1, 2 * capacity + 1))
        where, weights = rng.integers(0, capacity, n), rng.uniform(0, 5, n) * (rng.random(n) > 0.3)
        tree.update(where, weights)
        for i, w in zip(where, weights, strict=True):
            naive[i] = w
        assert tree.total == pytest.approx(math.fsum(naive), rel=1e-12)
        assert tree.min_positive == (naive[naive > 0].min() if naive.any() else 0)
        np.testing.assert_array_equal(tree.weights(np.arange(capacity)), naive)
        if naive.any():
            assert (naive[tree.draw(64)] > 0).all()
            assert (naive[tree.draw(64, False)] > 0).all()


def test_draws_follow_the_weights(rng):
    weights = rng.uniform(0, 1, 300) ** 3
    weights[::7] = 0
    tree = filled(weights)
    n, alive = 300_000, weights > 0
    counts = np.bincount(tree.draw(n, False), minlength=300)
    assert chisquare(counts[alive], n * weights[alive] / weights.sum()).pvalue > 1e-3
    assert counts[~alive].sum() == 0


def test_a_stratified_draw_takes_one_of_each_slice(rng):
    weights = rng.uniform(0, 1, 37)
    tree, n = filled(weights), 1000
    counts = np.bincount(tree.draw(n, True), minlength=37)
    expected = n * weights / weights.sum()
    assert (np.abs(counts - expected) < 2).all()
    many = sum(np.bincount(tree.draw(16, True), minlength=37) for _ in range(5000))
    np.testing.assert_allclose(many, 80_000 * weights / weights.sum(), atol=4 * math.sqrt(80_000 / 37) + 1)


def test_a_zero_weight_is_never_drawn_in_a_million(rng):
    weights = np.where(np.arange(1000) % 2, rng.uniform(1e-12, 1, 1000), 0)
    weights[-1] = 0
    tree = filled(weights)
    for stratified in (True, False):
        assert (weights[tree.draw(1_000_000, stratified)] > 0).all()


def test_the_root_equals_a_fresh_sum_after_a_million_updates(rng):
    size = 3001
    tree, naive = SumTree(size, 1), np.zeros(size)
    for _ in range(100):
        where, weights = rng.integers(0, size, 10_000), 10.0 ** rng.uniform(-30, 30, 10_000)
        tree.update(where, weights)
        naive[where] = weights
    weights = rng.uniform(0, 1, size)
    assert tree.total == pytest.approx(math.fsum(naive), rel=1e-9)
    tree.update(np.arange(size), weights)
    assert tree.total == pytest.approx(math.fsum(weights), rel=1e-12)


def test_weights_from_1e_minus_30_to_1e30(rng):
    weights = 10.0 ** np.arange(-30, 31)
    tree = filled(weights)
    assert tree.total == pytest.approx(math.fsum(weights), rel=1e-12)
    assert tree.min_positive == weights[0]
    counts = np.bincount(tree.draw(200_000, False), minlength=61)
    assert counts[60] / 200_000 == pytest.approx(0.9, abs=0.005)
    assert counts[59] / 200_000 == pytest.approx(0.09, abs=0.005)
    tree.update(np.arange(1, 61), np.zeros(60))
    assert tree.total == weights[0]
    assert (tree.draw(1000) == 0).all()


def test_simd_and_scalar_code_give_the_same_bits(rng):
    for capacity in (1, 8, 77, 4096, 5000):
        weights = rng.uniform(0, 1, capacity) ** 8 * (rng.random(capacity) > 0.2)
        weights[0] = 0.5
        fast, slow = filled(weights, 9, True), filled(weights, 9, False)
        assert fast.total == slow.total
        for n in (1, 7, 8, 64, 1001):
            for stratified in (True, False):
                np.testing.assert_array_equal(fast.draw(n, stratified), slow.draw(n, stratified))


def test_seeds(rng):
    weights = rng.uniform(0, 1, 5000)
    one, same, other = filled(weights, 1), filled(weights, 1), filled(weights, 2)
    first = one.draw(256, False)
    np.testing.assert_array_equal(first, same.draw(256, False))
    assert (first == other.draw(256, False)).mean() < 0.05


def test_of_duplicate_indices_the_last_counts():
    tree = SumTree(5, 1)
    tree.update(np.array([2, 2, 4, 2]), np.array([9.0, 8.0, 1.0, 3.0]))
    assert tree.total == 4
    np.testing.assert_array_equal(tree.weights(np.array([2, 4])), [3, 1])


def test_the_benchmark_of_the_tree_runs():
    program = Path(__file__).parents[1] / "benchmarks" / "tree.py"
    done = subprocess.run([sys.executable, str(program), "--quick"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "update" in done.stdout
    assert "numpy search" in done.stdout
