#pragma once

// The one source of chance: every order and delay comes from a seed.

#include <cstdint>
#include <random>

namespace vcattn::emulator {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  /// 0 .. count - 1
  std::uint32_t below(std::uint32_t count) { return static_cast<std::uint32_t>(((engine_() & 0xFFFFFFFFu) * count) >> 32); }
  bool one_in(std::uint32_t count) { return below(count) == 0; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace vcattn::emulator
