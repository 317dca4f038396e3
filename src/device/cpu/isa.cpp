#include "device/cpu/isa.hpp"

#include <array>
#include <cstddef>

namespace vcattn::device::cpu {

namespace {

struct IsaList {
  std::array<Isa, 3> items{};
  std::size_t count = 0;
};

IsaList detect() {
  IsaList list;
  list.items[list.count++] = Isa::baseline;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("x86-64-v3")) list.items[list.count++] = Isa::avx2;
  if (__builtin_cpu_supports("x86-64-v4")) list.items[list.count++] = Isa::avx512;
#endif
  return list;
}

}  // namespace

char const* isa_name(Isa isa) {
  switch (isa) {
    case Isa::baseline:
      return "baseline";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
  }
  return "unknown";
}

std::span<Isa const> available_isas() {
  static IsaList const list = detect();
  return {list.items.data(), list.count};
}

Isa best_isa() { return available_isas().back(); }

}  // namespace vcattn::device::cpu
