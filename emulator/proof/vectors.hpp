#pragma once

// Results of a GPU as they lie in the repository: hashes of blocks, or every bit where a tolerance needs them.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "emulator/proof/program.hpp"

namespace vcattn::emulator::proof {

inline constexpr std::size_t kBlockBytes = 2048;

struct Vectors {
  std::map<std::string, std::string> conditions;  // device, driver, date, commit
  std::map<std::string, std::vector<std::uint64_t>> hashes;
  std::map<std::string, std::vector<std::uint32_t>> words;  // of programs with a tolerance
};

/// FNV-1a of each kBlockBytes.
std::vector<std::uint64_t> block_hashes(std::vector<std::uint8_t> const& bytes);
/// Results that count of a program with a tolerance: the first word of each slot.
std::vector<std::uint32_t> result_words(std::vector<std::uint8_t> const& bytes);

/// Errors: std::runtime_error.
Vectors read_vectors(std::string const& path);
void write_vectors(std::string const& path, Vectors const& vectors);

/// What differs between an output and the stored results, empty if nothing does.
std::string difference(Program const& program, std::vector<std::uint8_t> const& output, Vectors const& vectors);

/// Distance of two FP32 numbers in units of the last place; NaN are at distance 0 of the same NaN only.
std::uint32_t distance(std::uint32_t a, std::uint32_t b);

}  // namespace vcattn::emulator::proof
