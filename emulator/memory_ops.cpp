// Loads and stores of threads.

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>

#include "emulator/executor.hpp"
#include "emulator/fault.hpp"
#include "emulator/forms.hpp"
#include "emulator/traffic.hpp"

namespace vcattn::emulator {

namespace {

enum class Space : std::uint8_t { global, shared, param, local, generic };

// Generic addresses of shared and local memory carry a mark that no address of the host has.
constexpr std::uint64_t kSharedWindow = std::uint64_t{1} << 62;
constexpr std::uint64_t kLocalWindow = std::uint64_t{2} << 62;
constexpr std::uint64_t kWindow = kSharedWindow | kLocalWindow;

std::uint8_t const* readable_parameter(Warp& warp, std::uint64_t address, std::size_t bytes) {
  Cta& cta = warp.cta();
  auto const offset = static_cast<std::int64_t>(address - reinterpret_cast<std::uint64_t>(cta.grid.parameters));
  if (offset < 0 || offset + static_cast<std::int64_t>(bytes) > cta.grid.kernel.parameter_bytes || address % bytes != 0) {
    throw Fault("read of " + std::to_string(bytes) + " bytes at parameter+" + std::to_string(offset) + " of " +
                std::to_string(cta.grid.kernel.parameter_bytes));
  }
  return reinterpret_cast<std::uint8_t const*>(address);
}

template <Space kSpace>
std::uint8_t const* readable(Warp& warp, std::uint64_t address, std::size_t bytes, int lane) {
  Cta& cta = warp.cta();
  if constexpr (kSpace == Space::global) return cta.grid.global.read(address, bytes, bytes);
  if constexpr (kSpace == Space::shared) return cta.shared.read(address, bytes, bytes, warp.clock);
  if constexpr (kSpace == Space::param) return readable_parameter(warp, address, bytes);
  if constexpr (kSpace == Space::local) return warp.local.read(static_cast<std::uint32_t>(lane), address, bytes);
  if ((address & kWindow) == kSharedWindow) return readable<Space::shared>(warp, address & ~kWindow, bytes, lane);
  if ((address & kWindow) == kLocalWindow) return readable<Space::local>(warp, address & ~kWindow, bytes, lane);
  return readable<Space::global>(warp, address, bytes, lane);
}

template <Space kSpace>
std::uint8_t* writable(Warp& warp, std::uint64_t address, std::size_t bytes, int lane) {
  Cta& cta = warp.cta();
  if constexpr (kSpace == Space::global) return cta.grid.global.write(address, bytes, bytes);
  if constexpr (kSpace == Space::shared) return cta.shared.write(address, bytes, bytes, warp.stamp());
  if constexpr (kSpace == Space::param) throw Fault("write to a parameter");
  if constexpr (kSpace == Space::local) return warp.local.write(static_cast<std::uint32_t>(lane), address, bytes);
  if ((address & kWindow) == kSharedWindow) return writable<Space::shared>(warp, address & ~kWindow, bytes, lane);
  if ((address & kWindow) == kLocalWindow) return writable<Space::local>(warp, address & ~kWindow, bytes, lane);
  return writable<Space::global>(warp, address, bytes, lane);
}

/// Addresses in 32 (shared) or 64 bits.
template <Space kSpace>
std::uint64_t address(Warp& warp, Instruction const& in, std::uint32_t slot, int lane) {
  std::uint64_t const base = kSpace == Space::shared ? warp.slot<std::uint32_t>(slot)[lane] : warp.slot<std::uint64_t>(slot)[lane];
  return base + static_cast<std::uint64_t>(in.offset[0]);
}

/// Into the counters, where details are asked for. `slot` holds the addresses.
template <Space kSpace>
void count(Warp& warp, Instruction const& in, std::uint32_t slot, Mask mask, std::size_t bytes, bool is_write) {
  Grid& grid = warp.cta().grid;
  if (!grid.count_forms || kSpace == Space::param) return;
  std::uint64_t addresses[kLanes];
  Mask in_level[3] = {};
  for (int lane = 0; lane < kLanes; ++lane) {
    addresses[lane] = address<kSpace>(warp, in, slot, lane);
    std::uint64_t const window = addresses[lane] & kWindow;
    bool const shared = kSpace == Space::shared || (kSpace == Space::generic && window == kSharedWindow);
    bool const local = kSpace == Space::local || (kSpace == Space::generic && window == kLocalWindow);
    in_level[shared ? 1 : local ? 2 : 0] |= mask & (Mask{1} << lane);
    addresses[lane] &= ~kWindow;
  }
  for (Level const level : {Level::global, Level::shared, Level::local}) {
    Mask const lanes = in_level[static_cast<int>(level)];
    if (lanes != 0) count_access(grid.counters, level, addresses, lanes, static_cast<std::uint32_t>(bytes), is_write);
  }
}

/// T in memory, Register in the slot (sign- or zero-extended), kCount elements.
template <Space kSpace, typename T, typename Register, int kCount>
Step load(Warp& warp, Instruction const& in, Mask mask) {
  count<kSpace>(warp, in, in.op[kCount], mask, sizeof(T) * kCount, false);
  Register* d[kCount];
  for (int n = 0; n < kCount; ++n) d[n] = warp.slot<Register>(in.op[n]);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (((mask >> lane) & 1u) == 0) continue;
    std::uint8_t const* const from = readable<kSpace>(warp, address<kSpace>(warp, in, in.op[kCount], lane), sizeof(T) * kCount, lane);
    T values[kCount];
    std::memcpy(values, from, sizeof values);
    for (int n = 0; n < kCount; ++n) d[n][lane] = static_cast<Register>(values[n]);
    if constexpr (kSpace == Space::shared) {
      std::uint64_t const at = address<kSpace>(warp, in, in.op[kCount], lane);
      if (warp.cta().shared.has_undefined(at, sizeof(T) * kCount)) {
        for (int n = 0; n < kCount; ++n) warp.set_undefined(in.op[n], lane, at);
      }
    }
  }
  return Step::next;
}

template <Space kSpace, typename T, typename Register, int kCount>
Step store(Warp& warp, Instruction const& in, Mask mask) {
  count<kSpace>(warp, in, in.op[0], mask, sizeof(T) * kCount, true);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (((mask >> lane) & 1u) == 0) continue;
    T values[kCount];
    for (int n = 0; n < kCount; ++n) values[n] = static_cast<T>(warp.slot<Register>(in.op[n + 1])[lane]);
    std::memcpy(writable<kSpace>(warp, address<kSpace>(warp, in, in.op[0], lane), sizeof values, lane), values, sizeof values);
  }
  return Step::next;
}

/// Replaces a word by function(word, operand) and returns what it was. Other warps may do the same without a barrier.
template <Space kSpace, auto kFunction>
Step atomic(Warp& warp, Instruction const& in, Mask mask) {
  count<kSpace>(warp, in, in.op[1], mask, sizeof(std::uint32_t), true);
  auto* d = warp.slot<std::uint32_t>(in.op[0]);
  auto const* operand = warp.slot<std::uint32_t>(in.op[2]);
  Cta& cta = warp.cta();
  for (int lane = 0; lane < kLanes; ++lane) {
    if (((mask >> lane) & 1u) == 0) continue;
    std::uint64_t const at = address<kSpace>(warp, in, in.op[1], lane);
    std::uint32_t old;
    std::uint8_t* word;
    if constexpr (kSpace == Space::shared) {
      word = cta.shared.update(at, sizeof old, warp.clock, warp.stamp());
    } else {
      (void)cta.grid.global.read(at, sizeof old, sizeof old);
      word = cta.grid.global.write(at, sizeof old, sizeof old);
    }
    std::memcpy(&old, word, sizeof old);
    std::uint32_t const changed = kFunction(old, operand[lane]);
    std::memcpy(word, &changed, sizeof changed);
    d[lane] = old;
  }
  return Step::next;
}
std::uint32_t sum(std::uint32_t a, std::uint32_t b) { return a + b; }
std::uint32_t larger(std::uint32_t a, std::uint32_t b) { return std::max(a, b); }
std::uint32_t united(std::uint32_t a, std::uint32_t b) { return a | b; }

/// Between generic addresses and those of a window.
template <std::uint64_t kOf, bool kToGeneric>
Step convert_address(Warp& warp, Instruction const& in, Mask mask) {
  auto* d = warp.slot<std::uint64_t>(in.op[0]);
  auto const* a = warp.slot<std::uint64_t>(in.op[1]);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (((mask >> lane) & 1u) == 0) continue;
    if (!kToGeneric && (a[lane] & kWindow) != kOf) throw Fault("cvta.to of an address outside of that memory");
    d[lane] = kToGeneric ? a[lane] | kOf : a[lane] & ~kWindow;
  }
  return Step::next;
}

/// Names and patterns that the table points to.
char const* keep(std::string text) {
  static std::deque<std::string> kept;
  return kept.emplace_back(std::move(text)).c_str();
}

/// Loads and stores of one type: ld.global.u32 d, [a] and so on. loads, stores: ".global", and its like with a hint for caches.
struct Names {
  std::vector<std::string> loads, stores;
};
template <Space kSpace, typename T, typename Register>
void add_forms(std::vector<Form>& forms, Names const& names, char const* type, char kind) {
  std::string const where = kSpace == Space::shared ? "s" : "m";
  auto const vector = [&](int count) { return "{" + std::string(static_cast<std::size_t>(count), kind) + "}"; };
  auto const add = [&](std::string const& op, std::string const& width, std::string const& pattern, MachineFunction function) {
    forms.push_back({keep(op + width + "." + type), keep(pattern), nullptr, function});
  };
  for (std::string const& name : names.loads) {
    add("ld" + name, "", std::string(1, kind) + "=" + where, load<kSpace, T, Register, 1>);
    add("ld" + name, ".v2", vector(2) + "=" + where, load<kSpace, T, Register, 2>);
    if constexpr (sizeof(T) <= 4) add("ld" + name, ".v4", vector(4) + "=" + where, load<kSpace, T, Register, 4>);
  }
  for (std::string const& name : names.stores) {
    add("st" + name, "", "=" + where + kind, store<kSpace, T, Register, 1>);
    add("st" + name, ".v2", "=" + where + vector(2), store<kSpace, T, Register, 2>);
    if constexpr (sizeof(T) <= 4) add("st" + name, ".v4", "=" + where + vector(4), store<kSpace, T, Register, 4>);
  }
}

template <Space kSpace>
void add_space(std::vector<Form>& forms, Names const& names) {
  using U8 = std::uint8_t;
  using S8 = std::int8_t;
  using U16 = std::uint16_t;
  using S16 = std::int16_t;
  using U32 = std::uint32_t;
  using S32 = std::int32_t;
  using U64 = std::uint64_t;
  using S64 = std::int64_t;
  for (char const* type : {"u32", "s32", "b32", "f32"}) add_forms<kSpace, U32, U32>(forms, names, type, 'r');
  for (char const* type : {"u64", "s64", "b64", "f64"}) add_forms<kSpace, U64, U64>(forms, names, type, 'd');
  add_forms<kSpace, S32, S64>(forms, names, "s32", 'd');
  add_forms<kSpace, U32, U64>(forms, names, "u32", 'd');
  add_forms<kSpace, U8, U32>(forms, names, "u8", 'r');
  add_forms<kSpace, S8, S32>(forms, names, "s8", 'r');
  add_forms<kSpace, U16, U32>(forms, names, "u16", 'r');
  add_forms<kSpace, S16, S32>(forms, names, "s16", 'r');
  // 16-bit registers hold zero-extended numbers: the low half of what the register's type says.
  add_forms<kSpace, U16, U32>(forms, names, "u16", 'h');
  add_forms<kSpace, U16, U32>(forms, names, "b16", 'h');
  add_forms<kSpace, U8, U32>(forms, names, "u8", 'h');
  add_forms<kSpace, S8, S32>(forms, names, "s8", 'h');
}

}  // namespace

std::vector<Form> memory_forms() {
  std::vector<Form> forms;
  add_space<Space::global>(forms, {{".global", ".global.nc"}, {".global", ".global.cs"}});
  add_space<Space::shared>(forms, {{".shared"}, {".shared"}});
  add_space<Space::param>(forms, {{".param"}, {}});
  add_space<Space::local>(forms, {{".local"}, {".local"}});
  add_space<Space::generic>(forms, {{""}, {""}});
  std::vector<Form> const others = {
      {"atom.global.add.u32", "r=mr", nullptr, atomic<Space::global, sum>},
      {"atom.global.max.u32", "r=mr", nullptr, atomic<Space::global, larger>},
      {"atom.shared.add.u32", "r=sr", nullptr, atomic<Space::shared, sum>},
      {"atom.shared.max.u32", "r=sr", nullptr, atomic<Space::shared, larger>},
      {"atom.shared.or.b32", "r=sr", nullptr, atomic<Space::shared, united>},
      {"cvta.shared.u64", "d=d", nullptr, convert_address<kSharedWindow, true>},
      {"cvta.local.u64", "d=d", nullptr, convert_address<kLocalWindow, true>},
      {"cvta.to.shared.u64", "d=d", nullptr, convert_address<kSharedWindow, false>},
      {"cvta.to.local.u64", "d=d", nullptr, convert_address<kLocalWindow, false>},
  };
  forms.insert(forms.end(), others.begin(), others.end());
  return forms;
}

}  // namespace vcattn::emulator
