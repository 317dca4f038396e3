#pragma once

// The executable contract for attention kernels: reads a prepared slab, walks its 128-key tiles in order with a running row maximum, and
// forms every code in the arithmetic of docs/equations.md (FP32, or scores rounded to FP16 where the head's variant says so). Sums are
// double, but for the products of Q K on request.

#include <cstddef>
#include <cstdint>
#include <functional>

#include "formats/prepared_layout.hpp"
#include "reference/problem_rows.hpp"

namespace vcattn::reference {

/// How the products of a score are summed.
enum class ScoreArithmetic : std::uint8_t {
  exact,  ///< with one rounding, to the format of the scores
  sm90,   ///< E4M3 codes as the tensor core of sm_90 (tensor_core.hpp), which the codes of probabilities feel; other formats as `exact`
};

/// Whether a kernel starts query row `row` of a (sequence, head) anew at `key_tile` > 0, for another thread block: the row constant begins
/// again there. The parts are added up in the end.
using StartsPart = std::function<bool(std::int64_t b, std::int64_t head, std::int64_t row, std::int64_t key_tile)>;

/// slab: as laid out by `layout`. options: those it was prepared with (probabilities, ExpCast form, top code, V block).
/// Result: o [B, Sq, H, D] and lse [B, H, Sq]; varlen: [1, total_q, H, D] and [H, total_q]. `varlen` says how to place the rows.
AttentionResult tile_ordered_attention(formats::PreparedLayout const& layout, Options const& options, std::byte const* slab,
                                       bool varlen = false, ScoreArithmetic arithmetic = ScoreArithmetic::exact,
                                       StartsPart const& starts_part = {});

}  // namespace vcattn::reference
