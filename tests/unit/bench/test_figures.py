"""Percentiles and rates."""

from __future__ import annotations

import pytest

from headway.bench.figures import percentile, rate, table, three_digits


def test_a_percentile_is_a_value_that_occurred() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert [percentile(values, p) for p in (0, 50, 95, 99, 100)] == [1, 50, 95, 99, 100]


def test_the_99th_percentile_of_few_values_is_the_worst() -> None:
    assert percentile([3.0, 1.0, 2.0], 99) == 3.0


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_a_rate_is_the_rise_over_the_time_between_two_samples() -> None:
    assert rate((10.0, 500), (12.5, 5500)) == 2000


def test_samples_out_of_order_make_no_rate() -> None:
    with pytest.raises(ValueError, match="not in order"):
        rate((10.0, 1), (10.0, 2))


def test_figures_claim_three_digits() -> None:
    assert [three_digits(v) for v in (12345.6, 999.4, 2.3456, 0.0)] == [12300, 999, 2.35, 0]


def test_a_table_aligns_its_columns() -> None:
    assert table([["", "now", "x"], ["longer", "1,234", "y"]]) == "          now  x\nlonger  1,234  y"
