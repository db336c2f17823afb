#!/usr/bin/env python3
"""Writes shift.json: ridge adapters and their truncations, computed by numpy directly from the tokens.

This script never forms a Gram matrix. Ridge is least squares on rows extended by sqrt(lambda) I. The truncations come from
full SVDs of A and of H_c A, and GCV from the hat matrix of an SVD of H_c on a fine grid. The tokens follow the rule of
Tokens() in tests/shift/tokens.h.
"""
import json
import pathlib

import numpy as np

D = 12
MASK = (1 << 64) - 1


class SplitMix64:
    def __init__(self, seed):
        self.state = seed

    def uniform(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return ((z ^ (z >> 31)) >> 11) * 2.0**-53


def tokens(count, massive, seed):
    random = SplitMix64(seed)
    h, delta = np.zeros((count, D), np.float32), np.zeros((count, D), np.float32)
    for i in range(count):
        u = [2 * random.uniform() - 1 for _ in range(D)]
        for j in range(D):
            h[i, j] = u[j] + (3.0 if j == 7 else 0.0)
            update = 0.3 * u[(j + 3) % D] + 0.2 * u[j] * u[(j + 1) % D] + 0.1 + 0.2 * (random.uniform() - 0.5)
            delta[i, j] = update
        if massive:
            h[i, 3] = 1000.0 + 100.0 * u[3]
            delta[i, 3] = 100.0 * delta[i, 3]
    return h.astype(np.float64), delta.astype(np.float64)


def ridge(h, delta, lam, penalize_bias):
    if penalize_bias:
        x, y = np.hstack([h, np.ones((len(h), 1))]), delta
    else:
        x, y = h - h.mean(0), delta - delta.mean(0)
    n = x.shape[1]
    rows, target = np.vstack([x, np.sqrt(lam) * np.eye(n)]), np.vstack([y, np.zeros((n, D))])
    solution = np.linalg.lstsq(rows, target, rcond=None)[0]
    if penalize_bias:
        return solution[:D], solution[D]
    return solution, delta.mean(0) - h.mean(0) @ solution


def gcv_lambda(h, delta, penalize_bias):
    """The lowest GCV score on 4801 points from 1e-10 to 1e2 times trace(H'H)/d, with explicit residuals."""
    if penalize_bias:
        x, y, free = np.hstack([h, np.ones((len(h), 1))]), delta, 0
    else:
        x, y, free = h - h.mean(0), delta - delta.mean(0), 1
    u, s, _ = np.linalg.svd(x, full_matrices=False)
    keep = s > 1e-10 * s[0]
    u, s = u[:, keep], s[keep]
    unit, best, best_score, loo = (h**2).sum() / D, None, np.inf, {}
    for power in np.linspace(-10, 2, 4801):
        lam = unit * 10**power
        shrink = s**2 / (s**2 + lam)
        residual = y - u @ (shrink[:, None] * (u.T @ y))
        score = len(h) * (residual**2).sum() / (len(h) - free - shrink.sum()) ** 2
        leverage = (u**2 * shrink).sum(1) + free / len(h)
        loo[lam] = ((residual / (1 - leverage)[:, None]) ** 2).sum()
        if score < best_score:
            best, best_score = lam, score
    assert loo[best] < 1.05 * min(loo.values()), "GCV disagrees with leave-one-out"
    return best


def r_squared(h, delta, a, b):
    return 1 - ((delta - h @ a - b) ** 2).sum() / ((delta - delta.mean(0)) ** 2).sum()


def rounded(x):
    return [float(f"{v:.13g}") for v in np.asarray(x).ravel()]


def case(name, count, massive, lam, penalize_bias, rank):
    h, delta = tokens(count, massive, seed=11)
    unit = (h**2).sum() / D
    kind, value = lam
    used = gcv_lambda(h, delta, penalize_bias) if kind == "gcv" else value * (unit if kind == "relative" else 1)
    a, b = ridge(h, delta, used, penalize_bias)
    u, s, vt = np.linalg.svd(a)
    svd = (u[:, :rank] * s[:rank]) @ vt[:rank]
    centered = h - h.mean(0)
    _, s_rrr, vt_rrr = np.linalg.svd(centered @ a)
    rrr = a @ vt_rrr[:rank].T @ vt_rrr[:rank]
    shrinkage = count / (count + used) if penalize_bias else 1  # of the best bias with a given map
    held_h, held_delta = tokens(40, massive, seed=12)
    return {
        "name": name, "tokens": count, "massive": massive, "penalize_bias": penalize_bias, "rank": rank,
        "kind": kind, "value": value, "lambda": used, "a": rounded(a), "b": rounded(b),
        "r2": r_squared(h, delta, a, b), "r2_heldout": r_squared(held_h, held_delta, a, b),
        "svd": rounded(svd), "svd_values": rounded(s), "rrr": rounded(rrr), "rrr_values": rounded(s_rrr[:D]),
        "rrr_b": rounded(shrinkage * (delta.mean(0) - h.mean(0) @ rrr)),
    }


def main():
    cases = [
        case("absolute", 100, False, ("absolute", 1.5), False, 4),
        case("relative_penalized", 100, False, ("relative", 1e-3), True, 4),
        case("gcv", 100, False, ("gcv", 0), False, 3),
        case("gcv_penalized", 100, False, ("gcv", 0), True, 3),
        case("gcv_few_tokens", 9, False, ("gcv", 0), False, 3),
        case("massive", 100, True, ("relative", 1e-6), False, 4),
        case("massive_gcv", 100, True, ("gcv", 0), False, 4),
    ]
    text = ",\n".join(json.dumps(c) for c in cases)
    (pathlib.Path(__file__).parent / "shift.json").write_text(f"[\n{text}\n]\n")


if __name__ == "__main__":
    main()
