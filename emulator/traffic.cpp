#include "emulator/traffic.hpp"

#include <algorithm>
#include <bit>

namespace vcattn::emulator {

namespace {

constexpr std::uint32_t kBanks = 32, kBankBytes = 4, kWavefrontBytes = kBanks * kBankBytes, kSectorBytes = 32;

/// Shared memory serves 128 bytes at once: 32 lanes of 4 bytes, 16 of 8, 8 of 16. Lanes that read the same word share it.
void count_wavefronts(Counters& counters, std::uint64_t const* addresses, Mask mask, std::uint32_t bytes) {
  std::uint32_t const words_per_lane = std::max(bytes / kBankBytes, 1u);
  std::uint32_t const lanes = kLanes / words_per_lane;
  for (std::uint32_t first = 0; first < kLanes; first += lanes) {
    std::uint64_t words[kLanes];
    std::uint32_t count = 0;
    for (std::uint32_t lane = first; lane < first + lanes; ++lane) {
      if (((mask >> lane) & 1u) == 0) continue;
      for (std::uint32_t w = 0; w < words_per_lane; ++w) words[count++] = addresses[lane] / kBankBytes + w;
    }
    if (count == 0) continue;
    std::sort(words, words + count);
    std::uint32_t in_bank[kBanks] = {};
    std::uint32_t most = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      if (i == 0 || words[i] != words[i - 1]) most = std::max(most, ++in_bank[words[i] % kBanks]);
    }
    counters.shared_wavefronts += most;
    counters.shared_bank_conflicts += most - 1;
  }
}

std::uint64_t sectors(std::uint64_t const* addresses, Mask mask, std::uint32_t bytes) {
  std::uint64_t touched[2 * kLanes];
  std::uint32_t count = 0;
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
    if (((mask >> lane) & 1u) == 0) continue;
    touched[count++] = addresses[lane] / kSectorBytes;
    touched[count++] = (addresses[lane] + bytes - 1) / kSectorBytes;
  }
  std::sort(touched, touched + count);
  return static_cast<std::uint64_t>(std::unique(touched, touched + count) - touched);
}

}  // namespace

void count_access(Counters& counters, Level level, std::uint64_t const* addresses, Mask mask, std::uint32_t bytes, bool is_write) {
  Traffic& traffic = level == Level::global ? counters.global : level == Level::shared ? counters.shared : counters.local;
  (is_write ? traffic.written_bytes : traffic.read_bytes) += std::uint64_t{bytes} * static_cast<std::uint32_t>(std::popcount(mask));
  if (level == Level::shared) count_wavefronts(counters, addresses, mask, bytes);
  if (level == Level::global) counters.global_sectors += sectors(addresses, mask, bytes);
}

}  // namespace vcattn::emulator
