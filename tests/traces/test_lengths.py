from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.workload.lengths import LengthSettings, QuantileTable, lengths_of, load_tables, pairs

N = 40_000

# Golden: mean, P50, P90, P99 of prompt and output tokens of the data itself (not of the tables).
DATA = {
    "sharegpt_opt_le2048": ((161.3, 35, 507, 1464), (338.0, 271, 754, 1280)),
    "alpaca_full": ((12.1, 11, 17, 27), (55.8, 40, 122, 249)),
    "azure_code_2023": ((2047.8, 1469, 5188, 7436), (27.9, 13, 55, 251)),
    "azure_conv_2023": ((1154.7, 1020, 2735, 4142), (211.1, 129, 424, 601)),
    "sharegpt_multiturn_llama2": ((2340.0, 1730, 5696, 7434), (438.7, 415, 834, 998)),
    "mooncake_conversation": ((12035, 6909, 27367, 85400), (342.6, 350, 597, 1119)),
    "mooncake_synthetic": ((15325, 11587, 38611, 66456), (149.1, 69, 389, 768)),
}


def drawn(settings: LengthSettings, seed: int = 3, n: int = N) -> list[tuple[int, int]]:
    stream = lengths_of(settings, np.random.default_rng(seed))
    assert stream is not None
    return list(islice(stream, n))


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Rank correlation, ties given their mean rank."""
    ranks: list[np.ndarray] = []
    for values in (first, second):
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(counts) - (counts - 1) / 2)[inverse])
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


@pytest.mark.parametrize("name", DATA)
def test_the_tables_have_the_mean_and_the_quantiles_of_their_data(name: str) -> None:
    for table, (mean, *quantiles) in zip(load_tables(name), DATA[name], strict=True):
        # 30 points overstate the mean by up to 3 % where the tail between P99 and the maximum is convex.
        assert mean * 0.99 <= table.mean_tokens <= mean * 1.035
        for share, tokens in zip((0.5, 0.9, 0.99), quantiles, strict=True):
            assert table.at(np.array([share]))[0] == pytest.approx(tokens, rel=0.01, abs=1)


@pytest.mark.parametrize("name", DATA)
def test_drawn_lengths_have_the_mean_and_the_quantiles_of_their_table(name: str) -> None:
    sample = np.array(drawn(LengthSettings(kind="table", table=name)))
    for table, column in zip(load_tables(name), sample.T, strict=True):
        assert column.mean() == pytest.approx(table.mean_tokens, abs=5 * column.std() / N**0.5)
        for share in (0.1, 0.5, 0.9, 0.99):
            tokens = table.at(np.array([share]))[0]
            tolerance = 5 * (share * (1 - share) / N) ** 0.5
            assert (column < tokens).mean() - tolerance <= share <= (column <= tokens).mean() + tolerance


@pytest.mark.parametrize("wanted", [-0.6, 0.0, 0.214, 0.9])
def test_prompt_and_output_have_the_rank_correlation_that_was_asked_for(wanted: float) -> None:
    fine = QuantileTable(percent=[0, 100], tokens=[1, 10**6])  # no ties, which would lower a rank correlation
    first, second = np.array(list(islice(pairs(fine, fine, wanted, np.random.default_rng(5)), N))).T
    # Standard error: (1 - r^2) sqrt((1 + r^2 / 2) / n) (Bonett and Wright, 2000).
    error = (1 - wanted**2) * ((1 + wanted**2 / 2) / N) ** 0.5
    assert spearman(first, second) == pytest.approx(wanted, abs=5 * error)


def test_sharegpt_pairs_exceed_the_bound_of_their_data_in_one_of_ninety_cases() -> None:
    # Said in conf/lengths/sharegpt.yaml: 1.1 %; +- half of the last digit and 5 standard errors.
    sample = drawn(LengthSettings(kind="table", table="sharegpt_opt_le2048", spearman=0.214))
    share = float(np.mean([n_prompt + n_output > 2048 for n_prompt, n_output in sample]))
    assert share == pytest.approx(0.011, abs=0.0005 + 5 * (0.011 / N) ** 0.5)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50), st.sampled_from(sorted(DATA)))
def test_a_table_gives_whole_tokens_within_its_ends_in_the_order_of_the_shares(shares: list[float], name: str) -> None:
    for table in load_tables(name):
        tokens = table.at(np.array(sorted(shares)))
        assert tokens == sorted(tokens)
        assert 1 <= table.tokens[0] <= tokens[0]
        assert tokens[-1] <= table.tokens[-1]


def test_the_same_seed_draws_the_same_lengths() -> None:
    settings = LengthSettings(kind="table", table="alpaca_full")
    assert drawn(settings, seed=1, n=3000) == drawn(settings, seed=1, n=3000) != drawn(settings, seed=2, n=3000)


def test_constant_lengths_never_change() -> None:
    assert set(drawn(LengthSettings(kind="constant", n_prompt_tokens=1200, n_output_tokens=534))) == {(1200, 534)}


def test_lengths_of_a_trace_are_not_drawn() -> None:
    assert lengths_of(LengthSettings(kind="file"), np.random.default_rng(0)) is None


@pytest.mark.parametrize(
    ("given_settings", "what"),
    [
        ({"kind": "gamma"}, "lengths.kind=gamma is unknown; choose one of table, constant, rows, file"),
        ({"kind": "table"}, "lengths.kind=table needs lengths.table"),
        ({"kind": "table", "table": "x", "spearman": 1.0}, "lengths.spearman=1.0 is outside"),
        ({"kind": "table", "table": "x", "spearman": float("nan")}, "lengths.spearman=nan is outside"),
        ({"kind": "table", "table": "x", "n_prompt_tokens": 5}, "lengths.n_prompt_tokens=5 has no effect"),
        ({"kind": "constant", "n_prompt_tokens": 5}, "lengths.n_output_tokens=None tokens must be at least 1"),
        ({"kind": "constant", "n_prompt_tokens": 0, "n_output_tokens": 1}, "lengths.n_prompt_tokens=0"),
        ({"kind": "rows"}, "lengths.kind=rows needs lengths.path"),
        ({"kind": "file", "path": "x"}, "lengths.path=x has no effect"),
        ({"kind": "file", "spearman": 0.5}, "lengths.spearman=0.5 has no effect"),
    ],
)
def test_length_settings_that_make_no_sense_are_refused(given_settings: dict[str, object], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        LengthSettings(**given_settings)  # pyright: ignore[reportArgumentType]


def test_a_table_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match="choose one of sharegpt_opt_le2048, alpaca_full"):
        load_tables("sharegpt")


@pytest.mark.parametrize(
    ("percent", "tokens"),
    [([0, 100], [1]), ([0, 50], [1, 2]), ([0, 50, 50, 100], [1, 2, 3, 4]), ([0, 100], [2, 1]), ([0, 100], [0, 1])],
)
def test_points_that_are_no_distribution_are_refused(percent: list[float], tokens: list[int]) -> None:
    with pytest.raises(ValueError, match=r"quantile table|percentages"):
        QuantileTable(percent=percent, tokens=tokens)
