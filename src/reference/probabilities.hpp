#pragma once

// Scores in code units (1/8 octave) to the probabilities that P V consumes, by definition and in real arithmetic.

#include <cstdint>
#include <vector>

#include "vcattn/options.hpp"

namespace vcattn::reference {

/// E4M3 byte of t = x + T by the definition of each form: [EQ-EXP] [EQ-EXPCAST-PAPER] [EQ-EXPCAST-OFFSET] [EQ-EXPCAST-TWOLINE]
/// [EQ-EXPCAST-AFFINE].
std::uint8_t probability_code(ExpForm form, double t);

/// Forms whose row constant stays until the row maximum would pass code 126.
bool has_head_room(Options const& options);
/// Row constant T for row maximum M (code units): puts the maximum at the top of the form; an integer for FP16 scores of head-room forms
/// [EQ-TOP-ALIGN].
double row_constant(Options const& options, bool f16_scores, double row_max);

/// Decoded probabilities of keys 0, 1, ... of a row from t = x + T; NVFP4 scales share 16 keys [EQ-P-NVFP4].
std::vector<double> decoded_probabilities(Options const& options, std::vector<double> const& t);

/// [EQ-LSE]
double log_sum_exp(Options const& options, double row_sum, double row_const, double correction);

}  // namespace vcattn::reference
