#pragma once

// What the forms of ExpCast make of a score, as figures: docs/equations.md, section "Scores and probabilities".

#include <cstdint>
#include <string>

#include "vcattn/options.hpp"

namespace vcattn::cli {

/// E4M3 code of the probability of a key whose score is `nats` below the row maximum (nats <= 0), with the largest top code of the form.
std::uint8_t probability_code(ExpForm form, double nats);

/// Value of an E4M3 code >= 0 below the NaN. [EQ-E4M3]
double decode_probability(std::uint8_t code);

/// HTML of the section with the staircase, its tail and the relative error.
std::string expcast_section();

}  // namespace vcattn::cli
