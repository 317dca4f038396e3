import numpy as np
import pytest
from reference import relative_error, softmax_attention

import vcattn


@pytest.mark.parametrize("recipe", ["vc8", "vc8s", "nvfp4"])
def test_sampled_figures_agree_with_a_full_comparison(rng, recipe):
    q, k, v = rng.standard_normal((3, 1, 3, 1500, 64), dtype=np.float32)
    audit = vcattn.audit(q, k, v, recipe, queries=256)
    out = vcattn.attention(q, k, v, recipe=recipe)
    exact, _ = softmax_attention(q, k, v)
    full = relative_error(out, exact)
    assert abs(audit.rel_l2 - full) < 0.1 * full
    assert audit.snr_db == pytest.approx(-20 * np.log10(audit.rel_l2)) and audit.queries == 256
    assert audit.rel_l2_of_heads.shape == (1, 3) and str(audit).startswith(f"{recipe}: rel_l2")


def test_not_a_number_is_no_agreement(rng):
    q, k, v = rng.standard_normal((3, 1, 2, 40, 64), dtype=np.float32)
    v[0, 0, 3] = np.nan
    audit = vcattn.audit(q, k, v, "vc8")
    assert np.isnan([audit.rel_l2, audit.snr_db, audit.cosine, audit.max_abs]).all() and np.isnan(audit.rel_l2_of_heads).tolist() == [[True, False]]


def test_audits_are_not_counted_as_served(rng):
    q, k, v = rng.standard_normal((3, 1, 2, 40, 64), dtype=np.float32)
    vcattn.audit(q, k, v)
    assert vcattn.stats()["served"] == {}


def test_all_rows_in_either_layout(rng):
    q, k, v = rng.standard_normal((3, 1, 200, 2, 64), dtype=np.float32)
    audit = vcattn.audit(q, k, v, "vc8", tensor_layout="NHD")
    out = vcattn.attention(q, k, v, "NHD", recipe="vc8")
    exact, _ = softmax_attention(*(x.swapaxes(1, 2) for x in (q, k, v)))
    assert audit.queries == 200 and audit.rel_l2 == pytest.approx(relative_error(out.swapaxes(1, 2), exact), rel=1e-4)
    assert vcattn.audit(q, k, v, "exact", tensor_layout="NHD").rel_l2 < 1e-6
