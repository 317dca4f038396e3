// Loads and stores of threads.

#include <cstring>
#include <deque>
#include <string>

#include "emulator/executor.hpp"
#include "emulator/fault.hpp"
#include "emulator/forms.hpp"

namespace vcattn::emulator {

namespace {

enum class Space : std::uint8_t { global, shared, param };

template <Space kSpace>
std::uint8_t const* readable(Warp& warp, std::uint64_t address, std::size_t bytes) {
  Cta& cta = warp.cta();
  if constexpr (kSpace == Space::global) return cta.grid.global.read(address, bytes, bytes);
  if constexpr (kSpace == Space::shared) return cta.shared.read(address, bytes, bytes, warp.clock);
  auto const* const p = reinterpret_cast<std::uint8_t const*>(address);
  auto const offset = static_cast<std::int64_t>(address - reinterpret_cast<std::uint64_t>(cta.grid.parameters));
  if (offset < 0 || offset + static_cast<std::int64_t>(bytes) > cta.grid.kernel.parameter_bytes || address % bytes != 0) {
    throw Fault("read of " + std::to_string(bytes) + " bytes at parameter+" + std::to_string(offset) + " of " +
                std::to_string(cta.grid.kernel.parameter_bytes));
  }
  return p;
}

template <Space kSpace>
std::uint8_t* writable(Warp& warp, std::uint64_t address, std::size_t bytes) {
  Cta& cta = warp.cta();
  if constexpr (kSpace == Space::global) return cta.grid.global.write(address, bytes, bytes);
  if constexpr (kSpace == Space::shared) return cta.shared.write(address, bytes, bytes, warp.stamp());
  throw Fault("write to a parameter");
}

/// Addresses in 32 (shared) or 64 bits.
template <Space kSpace>
std::uint64_t address(Warp& warp, Instruction const& in, std::uint32_t slot, int lane) {
  std::uint64_t const base = kSpace == Space::shared ? warp.slot<std::uint32_t>(slot)[lane] : warp.slot<std::uint64_t>(slot)[lane];
  return base + static_cast<std::uint64_t>(in.offset[0]);
}

/// T in memory, Register in the slot (sign- or zero-extended), kCount elements.
template <Space kSpace, typename T, typename Register, int kCount>
Step load(Warp& warp, Instruction const& in, Mask mask) {
  Register* d[kCount];
  for (int n = 0; n < kCount; ++n) d[n] = warp.slot<Register>(in.op[n]);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (((mask >> lane) & 1u) == 0) continue;
    std::uint8_t const* const from = readable<kSpace>(warp, address<kSpace>(warp, in, in.op[kCount], lane), sizeof(T) * kCount);
    T values[kCount];
    std::memcpy(values, from, sizeof values);
    for (int n = 0; n < kCount; ++n) d[n][lane] = static_cast<Register>(values[n]);
  }
  return Step::next;
}

template <Space kSpace, typename T, typename Register, int kCount>
Step store(Warp& warp, Instruction const& in, Mask mask) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if (((mask >> lane) & 1u) == 0) continue;
    T values[kCount];
    for (int n = 0; n < kCount; ++n) values[n] = static_cast<T>(warp.slot<Register>(in.op[n + 1])[lane]);
    std::memcpy(writable<kSpace>(warp, address<kSpace>(warp, in, in.op[0], lane), sizeof values), values, sizeof values);
  }
  return Step::next;
}

/// Names and patterns that the table points to.
char const* keep(std::string text) {
  static std::deque<std::string> kept;
  return kept.emplace_back(std::move(text)).c_str();
}

/// Loads and stores of one type: ld.global.u32 d, [a] and so on.
template <Space kSpace, typename T, typename Register>
void add_forms(std::vector<Form>& forms, std::string const& space, char const* type, char kind) {
  std::string const where = kSpace == Space::shared ? "s" : "m";
  auto const vector = [&](int count) { return "{" + std::string(static_cast<std::size_t>(count), kind) + "}"; };
  auto const add = [&](std::string const& op, std::string const& width, std::string const& pattern, MachineFunction function) {
    forms.push_back({keep(op + "." + space + width + "." + type), keep(pattern), nullptr, function});
  };
  add("ld", "", std::string(1, kind) + "=" + where, load<kSpace, T, Register, 1>);
  add("ld", ".v2", vector(2) + "=" + where, load<kSpace, T, Register, 2>);
  if constexpr (sizeof(T) <= 4) add("ld", ".v4", vector(4) + "=" + where, load<kSpace, T, Register, 4>);
  if constexpr (kSpace != Space::param) {
    add("st", "", "=" + where + kind, store<kSpace, T, Register, 1>);
    add("st", ".v2", "=" + where + vector(2), store<kSpace, T, Register, 2>);
    if constexpr (sizeof(T) <= 4) add("st", ".v4", "=" + where + vector(4), store<kSpace, T, Register, 4>);
  }
}

template <Space kSpace>
void add_space(std::vector<Form>& forms, std::string const& space) {
  using U8 = std::uint8_t;
  using S8 = std::int8_t;
  using U16 = std::uint16_t;
  using S16 = std::int16_t;
  using U32 = std::uint32_t;
  using S32 = std::int32_t;
  using U64 = std::uint64_t;
  using S64 = std::int64_t;
  for (char const* type : {"u32", "s32", "b32", "f32"}) add_forms<kSpace, U32, U32>(forms, space, type, 'r');
  for (char const* type : {"u64", "s64", "b64"}) add_forms<kSpace, U64, U64>(forms, space, type, 'd');
  add_forms<kSpace, S32, S64>(forms, space, "s32", 'd');
  add_forms<kSpace, U32, U64>(forms, space, "u32", 'd');
  add_forms<kSpace, U8, U32>(forms, space, "u8", 'r');
  add_forms<kSpace, S8, S32>(forms, space, "s8", 'r');
  add_forms<kSpace, U16, U32>(forms, space, "u16", 'r');
  add_forms<kSpace, S16, S32>(forms, space, "s16", 'r');
  // 16-bit registers hold zero-extended numbers: the low half of what the register's type says.
  add_forms<kSpace, U16, U32>(forms, space, "u16", 'h');
  add_forms<kSpace, U16, U32>(forms, space, "b16", 'h');
  add_forms<kSpace, U8, U32>(forms, space, "u8", 'h');
  add_forms<kSpace, S8, S32>(forms, space, "s8", 'h');
}

}  // namespace

std::vector<Form> memory_forms() {
  std::vector<Form> forms;
  add_space<Space::global>(forms, "global");
  add_space<Space::shared>(forms, "shared");
  add_space<Space::param>(forms, "param");
  return forms;
}

}  // namespace vcattn::emulator
