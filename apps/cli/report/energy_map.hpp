#pragma once

// Where block means leave energy of V: one strip per head, in sequence order and grouped.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "vcattn/attention.hpp"
#include "vcattn/options.hpp"

namespace vcattn::cli {

/// Energy that stays in each block of `block` rows after its mean is subtracted, per row, in units of the head's mean energy per row about
/// its mean. permutation: [Sk] or empty (sequence order); the first n_valid sorted rows count. [EQ-ENERGY]
std::vector<double> energy_left(TensorView const& v, std::int64_t batch, std::int64_t head, std::span<std::int32_t const> permutation,
                                std::int64_t n_valid, std::int64_t block);

/// HTML of the section. `options`: how keys are grouped where the problem has no permutation of its own.
std::string energy_section(Problem const& problem, Options options);

}  // namespace vcattn::cli
