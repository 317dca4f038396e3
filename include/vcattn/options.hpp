#pragma once

// Recipes and the choices they are made of. A recipe is only a named set of Options: every choice can be overridden on its own,
// so that an ablation needs no new code. docs/equations.md holds the formulas behind each choice.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vcattn/types.hpp"

namespace vcattn {

/// Named recipes, docs/alignment.md has the table of what each is made of.
enum class Recipe : std::uint32_t { exact, bf16, fp8, sage2, vsmooth8, vc8_paper, vc8, vsmooth8s, vc8s, nvfp4, sage3, vsmooth4 };

/// Code format of Q and K.
enum class QkFormat : std::uint32_t { f32, bf16, e4m3, int8, nvfp4 };

/// How the descales of E4M3 or INT8 Q and K are chosen.
enum class QkScaling : std::uint32_t {
  head,   ///< amax / largest code, one per (batch, head)
  block,  ///< amax / largest code, one per q_block query rows or k_block key rows
  unit,   ///< E4M3 only [EQ-UNIT]: products come out in code units / n, overflow-proof for an FP16 accumulator
};

/// How a value of Q or K picks its code.
enum class QkRounding : std::uint32_t {
  nearest,   ///< the nearest code, ties to even
  shaped_k,  ///< K channel by channel, each one making up for the score error of those before it [EQ-SHAPED]; Q to nearest
  shaped,    ///< Q as well
};

/// Code format of V (of its residual from the block means where `v_mean` is on).
enum class VFormat : std::uint32_t { f32, bf16, e4m3, nvfp4 };

/// Format of the probabilities that P V consumes.
enum class ProbFormat : std::uint32_t {
  f32,
  bf16,
  e4m3,
  nvfp4,            ///< one UE4M3 scale per 16 keys, row maximum at 1
  nvfp4_two_level,  ///< the same with the row maximum brought to 448 * 6 first
};

/// How a score becomes an E4M3 probability byte.
enum class ExpForm : std::uint32_t {
  exp,        ///< exponential, then round to nearest even [EQ-EXP]
  paper,      ///< 8 log2(e) u + 119.65, clamped to [0, 120] [EQ-EXPCAST-PAPER]
  offset126,  ///< one line with an integer row constant [EQ-EXPCAST-OFFSET]
  two_line,   ///< max(t, 0.3 t + 5) [EQ-EXPCAST-TWOLINE]
  affine,     ///< affine FP16 bits, then a conversion to E4M3 [EQ-EXPCAST-AFFINE]
};

/// Precision of the scores that enter the softmax.
enum class ScoreFormat : std::uint32_t {
  automatic,  ///< FP16 where the score bound of a head allows it (unit scaling only), FP32 elsewhere
  f16,        ///< FP16 for every head with a bound up to 1,900 code units, FP32 elsewhere; refused where scaling is not `unit`
  f32,
};

/// Order of the key rows, which decides which V rows share a block.
enum class GroupOrder : std::uint32_t {
  automatic,  ///< `sequence` for causal calls and without block means; else `label` for the recipe vc8-paper, `chain_sorted` for the others
  sequence,   ///< as the caller stores them
  label,      ///< k-means, clusters by label, stable
  chain,      ///< k-means, clusters chained by nearest centroid
  chain_sorted,  ///< as chain, rows inside a cluster sorted along the cluster's main direction
};

/// Every choice of the method. Obtain one from recipe_options() and change fields, or use set_option().
struct Options {
  Recipe recipe = Recipe::vc8s;  ///< where the values came from; decides nothing but what GroupOrder::automatic means

  QkFormat qk = QkFormat::int8;
  QkScaling qk_scaling = QkScaling::block;
  std::int32_t q_block = 128;  ///< query rows per descale with QkScaling::block: 32, 64 or 128
  std::int32_t k_block = 128;  ///< key rows per descale with QkScaling::block: 32, 64 or 128
  QkRounding qk_rounding = QkRounding::nearest;
  bool k_mean = true;    ///< subtract the mean over valid keys from K (exact; LSE is corrected)
  bool q_mean = false;   ///< subtract 128-row means from Q, add their products with K back in high precision (SageAttention3)
  bool hadamard = true;  ///< rotate Q and K by the orthonormal Sylvester-Hadamard matrix of the padded head_dim
  ScoreFormat scores = ScoreFormat::automatic;

  VFormat v = VFormat::e4m3;
  bool v_per_channel = true;   ///< one V descale per channel and head; false: one per head
  bool v_mean = true;          ///< V-Smooth: quantise the residual from block means
  std::int32_t v_block = 128;  ///< rows per V mean: 32, 64 or 128
  bool emc = true;             ///< error-mean compensation of the block means

  ProbFormat prob = ProbFormat::e4m3;
  ExpForm exp_form = ExpForm::two_line;
  std::int32_t top_code =
      126;  ///< E4M3 code given to the row maximum, 8..126; below 126 the rest is head-room for a stale maximum (not in `paper`, `exp`)

  GroupOrder order = GroupOrder::automatic;
  std::int32_t clusters = 0;    ///< 0: chosen from the number of keys; at most 4096
  std::int32_t iterations = 4;  ///< Lloyd iterations of a cold start; a warm start runs `warm_iterations`
  std::int32_t warm_iterations = 1;

  bool check_finite = false;     ///< look for NaN and infinity in Q, K, V first and throw ErrorCode::nonfinite
  bool exact_f64 = false;        ///< `exact` only: compute in double
  std::int32_t num_threads = 0;  ///< 0, or more than there are: all cores
};

/// All recipes in their canonical order.
VCATTN_API std::span<Recipe const> all_recipes();

/// Canonical name, as in `vcattn attend --recipe NAME` ("vc8-paper").
VCATTN_API std::string_view recipe_name(Recipe recipe);

/// Recipe of that name. Errors: invalid_argument, listing the names.
VCATTN_API Recipe parse_recipe(std::string_view name);

/// The choices that a recipe stands for.
VCATTN_API Options recipe_options(Recipe recipe);

/// Sets one choice by its text name, e.g. ("expcast", "two_line"), ("top", "126"), ("block", "64"), ("hadamard", "off"), ("order",
/// "label"),
/// ("clusters", "64"), ("emc", "off"), ("qk", "int8"). "qk" and "expcast" also choose the scaling and the top code that belong to the
/// value. Errors: invalid_argument that lists the keys or the values.
VCATTN_API void set_option(Options& options, std::string_view key, std::string_view value);

/// Applies "key=value,key=value", "qk" and "expcast" first. Errors: as set_option.
VCATTN_API void set_options(Options& options, std::string_view list);

/// Every choice as text, in a fixed order; set_option() accepts each pair.
VCATTN_API std::vector<std::pair<std::string, std::string>> describe_options(Options const& options);

/// Throws invalid_argument or unsupported when the choices contradict each other.
VCATTN_API void validate_options(Options const& options);

}  // namespace vcattn
