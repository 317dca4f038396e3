#pragma once

// Attention by the textbook, in double: the exact result, and every recipe with one global row maximum instead of a running one.

#include "reference/problem_rows.hpp"
#include "vcattn/options.hpp"

namespace vcattn::reference {

/// softmax(tau Q K^T) V: no recipe, no permutation. Rows without a key: O = 0, lse = -inf. Rows that meet a non-finite value: NaN.
AttentionResult exact_attention(Problem const& problem);

/// What a recipe computes, with real arithmetic between its roundings: preparation, codes of the scores and probabilities, restoration of
/// the means. Key order is problem.permutation; options.order and options.clusters are not looked at.
AttentionResult recipe_attention(Problem const& problem, Options const& options);

}  // namespace vcattn::reference
