#include "emulator/proof/program.hpp"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <optional>

#include "emulator/proof/operands.hpp"

namespace vcattn::emulator::proof {

namespace {

constexpr std::uint32_t kThreads = 256, kCtas = 64, kCount = kThreads * kCtas;
constexpr std::uint32_t kSlot = 8;  // bytes of an operand or a result of one thread

/// Seed of a program, so that the operands of one do not depend on which others there are.
std::uint64_t seed_of(std::string const& name) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (char const c : name) hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x100000001B3u;
  return hash;
}

std::string number(std::uint64_t x) { return std::to_string(x); }

/// %out, %in: addresses; %tid, %cta: numbers; %smem: shared address.
std::string kernel(std::string const& registers, std::string const& body, std::uint32_t threads) {
  return ".version 8.3\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 shared[];\n"
         ".visible .entry proof(.param .align 128 .b8 parameter[" +
         number(kParameterBytes) + "])\n.maxntid " + number(threads) + ", 1, 1\n{\n" + registers +
         ".reg .b64 %out, %in, %at;\n.reg .b32 %thread, %lane, %cta, %all, %smem;\n"
         "ld.param.u64 %out, [parameter];\nld.param.u64 %in, [parameter+8];\ncvta.to.global.u64 %out, %out;\ncvta.to.global.u64 %in, %in;\n"
         "mov.u32 %thread, %tid.x;\nmov.u32 %cta, %ctaid.x;\nmov.u32 %smem, shared;\nand.b32 %lane, %thread, 31;\n"
         "mad.lo.s32 %all, %cta, " +
         number(threads) + ", %thread;\n" + body + "ret;\n}\n";
}

struct Form {
  std::string name;
  char const* pattern;    // kinds of results, `=`, kinds of operands: operands.hpp
  std::string text = {};  // default: name %x, ..., %a, ...; more registers: %own (address of 32 bytes of shared memory of each thread),
                          // %from (of 32 bytes of input), %r0 to %r9, %d0 to %d3, %p0 to %p3; stack: 32 bytes of local memory
  std::uint32_t tolerance = 0;
  std::uint32_t stored = 0;  // slots of output of each thread that the text itself writes
};

char const* register_type(char kind) {
  switch (kind) {
    case 'd':
      return ".b64";
    case 'h':
    case 'e':
    case 'X':
    case 'B':
      return ".b16";
    case 'p':
      return ".pred";
    case 'f':
    case 'c':
    case 'g':
      return ".f32";
    case 'F':
      return ".f64";
    default:
      return ".b32";
  }
}

std::string memory_type(char kind) {
  std::string const type = register_type(kind);
  return type == ".b64" ? "u64" : type == ".b16" ? "u16" : type == ".f32" ? "f32" : type == ".f64" ? "f64" : "u32";
}

/// %x, %y, %z, %w, %v2, ... for results; %a, %b, ... for operands.
std::string result_name(std::size_t i) { return std::string("%") + "xyzwvutq"[i]; }
std::string operand_name(std::size_t i) { return std::string("%") + "abcdefghijklmno"[i]; }

Program elementwise(Form const& form) {
  std::string const pattern = form.pattern;
  auto const equals = pattern.find('=');
  std::string const results = pattern.substr(0, equals), operands = pattern.substr(equals + 1);
  std::string registers = ".reg .b32 %own;\n.reg .b64 %from;\n.reg .b32 %r<10>;\n.reg .b64 %d<4>;\n.reg .pred %p<4>;\n", body, list;
  if (form.text.find("stack") != std::string::npos) registers += ".local .align 16 .b8 stack[32];\n";
  body =
      "mul.wide.u32 %at, %all, 8;\nadd.s64 %out, %out, %at;\nmul.wide.u32 %from, %all, 32;\nadd.s64 %from, %in, %from;\n"
      "add.s64 %in, %in, %at;\nmad.lo.s32 %own, %thread, 32, %smem;\n";
  for (std::size_t i = 0; i < results.size(); ++i) {
    registers += ".reg " + std::string(register_type(results[i])) + " " + result_name(i) + ";\n";
    list += (list.empty() ? " " : ", ") + result_name(i);
  }
  for (std::size_t i = 0; i < operands.size(); ++i) {
    std::string const name = operand_name(i), address = "[%in+" + number(i * kCount * kSlot) + "]";
    registers += ".reg " + std::string(register_type(operands[i])) + " " + name + ";\n";
    list += (list.empty() ? " " : ", ") + name;
    if (operands[i] == 'p') {
      body += "ld.global.u32 %all, " + address + ";\nsetp.ne.s32 " + name + ", %all, 0;\n";
    } else {
      body += "ld.global." + memory_type(operands[i]) + " " + name + ", " + address + ";\n";
    }
  }
  body += form.text.empty() ? form.name + list + ";\n" : form.text + "\n";
  for (std::size_t i = 0; i < results.size(); ++i) {
    std::string const address = "[%out+" + number(i * kCount * kSlot) + "]";
    if (results[i] == 'p') {
      body += "selp.u32 %all, 1, 0, " + result_name(i) + ";\nst.global.u32 " + address + ", %all;\n";
    } else {
      body += "st.global." + memory_type(results[i]) + " " + address + ", " + result_name(i) + ";\n";
    }
  }

  Program program{
      form.name, kernel(registers, body, kThreads), kCtas, kThreads, kThreads * 32, {}, (results.size() + form.stored) * kCount * kSlot};
  program.tolerance = form.tolerance;
  std::string const kinds = operands.size() < 4 ? operands + std::string(4 - operands.size(), 'd') : operands;
  program.input.resize(kinds.size() * kCount * kSlot);
  Numbers numbers(seed_of(form.name));
  for (std::size_t i = 0; i < kCount; ++i) {
    std::vector<std::uint64_t> before;
    for (std::size_t j = 0; j < kinds.size(); ++j) {
      before.push_back(operand(kinds[j], numbers, before));
      std::memcpy(program.input.data() + (j * kCount + i) * kSlot, &before.back(), kSlot);
    }
  }
  return program;
}

void add(std::vector<Program>& programs, std::initializer_list<Form> const& forms) {
  for (Form const& form : forms) programs.push_back(elementwise(form));
}
/// The same pattern for several forms.
void add(std::vector<Program>& programs, char const* pattern, std::initializer_list<char const*> names) {
  for (char const* const name : names) programs.push_back(elementwise({name, pattern}));
}

// Matrix products of a warpgroup ---------------------------------------------------------------------------------------------------------

enum class Codes : std::uint8_t { e4m3, s8, f16 };

struct Product {
  char const* form;
  Codes codes;
  std::uint32_t n;
  bool a_in_registers, half_sums;
  std::uint32_t steps;  // products in a row
};

/// Each CTA has a theme of operands, a swizzle, a place within the swizzle row, and an accumulator or none.
Program product(Product const& p) {
  constexpr std::uint32_t kGroup = 128, kTileA = 64 * 128, kTileB = 136 * 128, kTiles = kTileA + kTileB;
  constexpr std::uint32_t kProductCtas = 27;
  bool const k_major = p.codes != Codes::f16;
  std::uint32_t const sums = p.half_sums ? p.n / 4 : p.n / 2, fragments = p.a_in_registers ? 4 * p.steps : 0;
  // Per CTA: both tiles, descriptors of each step, accumulate or not, then words by register and thread.
  std::uint32_t const header = 16 * p.steps + 16, cta_bytes = kTiles + header + (sums + fragments) * kGroup * 4;

  std::string registers = ".reg .b32 %r<8>;\n.reg .b64 %d<8>;\n.reg .pred %p<4>;\n.reg .b64 %shared;\n";
  char const* const sum_type = p.half_sums || p.codes == Codes::s8 ? ".b32" : ".f32";
  registers +=
      std::string(".reg ") + sum_type + " %sum<" + number(sums) + ">;\n.reg .b32 %fragment<" + number(std::max(fragments, 1u)) + ">;\n";
  std::string body = "mul.wide.u32 %at, %cta, " + number(cta_bytes) + ";\nadd.s64 %in, %in, %at;\n";
  body += "mul.wide.u32 %d0, %thread, 16;\nadd.s64 %d0, %in, %d0;\nmad.lo.s32 %r0, %thread, 16, %smem;\n";
  for (std::uint32_t at = 0; at < kTiles; at += kGroup * 16) {
    std::string const guard = at + kGroup * 16 > kTiles ? "@%p0 " : "";
    if (!guard.empty()) body += "setp.lt.u32 %p0, %thread, " + number((kTiles - at) / 16) + ";\n";
    body += guard + "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d0+" + number(at) + "];\n";
    body += guard + "st.shared.v4.u32 [%r0+" + number(at) + "], {%r1, %r2, %r3, %r4};\n";
  }
  body += "mul.wide.u32 %d1, %thread, 4;\nadd.s64 %d1, %in, %d1;\n";
  auto const word = [&](std::uint32_t index) { return "[%d1+" + number(kTiles + header + index * kGroup * 4) + "]"; };
  std::string const load = sum_type == std::string(".f32") ? "ld.global.f32 " : "ld.global.u32 ";
  for (std::uint32_t i = 0; i < sums; ++i) body += load + "%sum" + number(i) + ", " + word(i) + ";\n";
  for (std::uint32_t i = 0; i < fragments; ++i) body += "ld.global.u32 %fragment" + number(i) + ", " + word(sums + i) + ";\n";
  body += "ld.global.u32 %r5, [%in+" + number(kTiles + 16 * p.steps) + "];\nsetp.ne.b32 %p1, %r5, 0;\n";
  body += "cvt.u64.u32 %shared, %smem;\nshr.u64 %shared, %shared, 4;\n";
  body += "fence.proxy.async;\nbar.sync 0;\nwgmma.fence.sync.aligned;\n";
  std::string list;
  for (std::uint32_t i = 0; i < sums; ++i) list += (i == 0 ? "%sum" : ", %sum") + number(i);
  for (std::uint32_t s = 0; s < p.steps; ++s) {
    body += "ld.global.v2.u64 {%d2, %d3}, [%in+" + number(kTiles + 16 * s) + "];\nadd.s64 %d2, %d2, %shared;\nadd.s64 %d3, %d3, %shared;\n";
    std::string a = "%d2";
    if (p.a_in_registers) {
      a = "{";
      for (std::uint32_t i = 0; i < 4; ++i) a += (i == 0 ? "%fragment" : ", %fragment") + number(4 * s + i);
      a += "}";
    }
    body += std::string(p.form) + " {" + list + "}, " + a + ", %d3, ";
    body += p.codes == Codes::f16 ? "1, 1, 1, 1;\n" : std::string(s == 0 ? "%p1" : "%p2") + (p.codes == Codes::s8 ? ";\n" : ", 1, 1;\n");
    if (s == 0 && p.steps > 1) body.insert(body.find("wgmma.fence"), "setp.eq.s32 %p2, 0, 0;\n");
  }
  body += "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n";
  body += "mul.wide.u32 %d4, %thread, 4;\nadd.s64 %d4, %out, %d4;\nmul.wide.u32 %at, %cta, " + number(sums * kGroup * 4) +
          ";\nadd.s64 %d4, %d4, %at;\n";
  std::string const store = sum_type == std::string(".f32") ? "st.global.f32" : "st.global.u32";
  for (std::uint32_t i = 0; i < sums; ++i) body += store + " [%d4+" + number(i * kGroup * 4) + "], %sum" + number(i) + ";\n";

  std::string const name = std::string(p.form) + (p.steps > 1 ? " x" + number(p.steps) : "");
  Program program{name, kernel(registers, body, kGroup), kProductCtas, kGroup, kTiles, {}, kProductCtas * sums * kGroup * 4};
  Numbers numbers(seed_of(name));
  for (std::uint32_t cta = 0; cta < kProductCtas; ++cta) {
    std::uint32_t const theme = cta, sum_theme = cta + 2 * (cta / kThemes) + 1;
    std::vector<std::uint8_t> part(cta_bytes);
    auto const code = [&] { return p.codes == Codes::s8 ? static_cast<std::uint8_t>(numbers.word()) : e4m3_code(theme, numbers); };
    if (k_major) {
      for (std::uint32_t i = 0; i < kTiles; ++i) part[i] = code();
    } else {
      for (std::uint32_t i = 0; i < kTiles; i += 2) {
        std::uint16_t const half = half_number(theme, numbers);
        std::memcpy(part.data() + i, &half, 2);
      }
    }
    // Swizzle rows of 128, 64 and 32 bytes, in a descriptor 1, 2, 3.
    std::uint64_t const swizzle = 1 + cta % 3, pitch = 256u >> swizzle;
    for (std::uint32_t s = 0; s < p.steps; ++s) {
      std::uint64_t const within = (cta + s) * 32 % pitch;
      std::uint64_t const k_major_fields = (std::uint64_t{1} << 16) | ((8 * pitch >> 4) << 32) | (swizzle << 62);
      // N-major: 8 rows of K make a block; blocks of the next 8, then of the next columns, follow.
      std::uint64_t const n_major_fields = ((16 * pitch >> 4) << 16) | ((8 * pitch >> 4) << 32) | (swizzle << 62);
      std::uint64_t const a = (within >> 4) | k_major_fields;
      std::uint64_t const b = (kTileA >> 4) + (k_major ? (within >> 4) | k_major_fields : n_major_fields);
      std::memcpy(part.data() + kTiles + 16 * s, &a, 8);
      std::memcpy(part.data() + kTiles + 16 * s + 8, &b, 8);
    }
    std::uint32_t const accumulate = p.codes == Codes::f16 || cta % 7 != 3 ? 1 : 0;
    std::memcpy(part.data() + kTiles + 16 * p.steps, &accumulate, 4);
    for (std::uint32_t i = 0; i < (sums + fragments) * kGroup; ++i) {
      std::uint32_t value = 0;
      if (i < sums * kGroup) {
        value = p.codes == Codes::s8 ? numbers.word() >> (cta % 3 * 8)
                : p.half_sums        ? half_sums(sum_theme, numbers)
                                     : float_sum(sum_theme, numbers);
      } else {
        for (int byte = 0; byte < 4 && k_major; ++byte) value |= std::uint32_t{code()} << (8 * byte);
        for (int half = 0; half < 2 && !k_major; ++half) value |= std::uint32_t{half_number(theme, numbers)} << (16 * half);
      }
      std::memcpy(part.data() + kTiles + header + i * 4, &value, 4);
    }
    program.input.insert(program.input.end(), part.begin(), part.end());
  }
  return program;
}

// Copies and barriers --------------------------------------------------------------------------------------------------------------------

constexpr char const* kWait = "wait:\nmbarrier.try_wait.parity.shared::cta.b64 %p0, [%smem], 0;\n@!%p0 bra $wait;\n";

/// One box a CTA, at coordinates from the input; then shared memory as it is.
Program boxes(std::string const& name, BoxedInput tensor) {
  constexpr std::uint32_t kBoxCtas = 48, kBarrier = 1024;
  std::uint32_t const box = tensor.box_rows * tensor.box_columns * tensor.element_bytes;
  tensor.offset = 1024;
  std::string body =
      "mul.wide.u32 %d0, %cta, 8;\nadd.s64 %d0, %in, %d0;\nld.global.v2.u32 {%r0, %r1}, [%d0];\nadd.s32 %r2, %smem, " + number(kBarrier) +
      ";\nmov.u64 %d1, parameter;\ncvta.param.u64 %d1, %d1;\nadd.s64 %d1, %d1, " + number(kMapOffset) +
      ";\nsetp.eq.s32 %p1, %thread, 0;\n@!%p1 bra $others;\nmbarrier.init.shared.b64 [%smem], 1;\n"
      "fence.mbarrier_init.release.cluster;\nmbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %d2, [%smem], " +
      number(box) +
      ";\ncp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r2], [%d1, {%r0, %r1}], [%smem];\n"
      "$others:\nbar.sync 0;\n$" +
      kWait + "mad.lo.s32 %r3, %thread, 4, %r2;\nmul.wide.u32 %d3, %cta, " + number(box) +
      ";\nadd.s64 %out, %out, %d3;\nmul.wide.u32 %d3, %thread, 4;\nadd.s64 %out, %out, %d3;\n";
  for (std::uint32_t at = 0; at < box; at += 512) {
    std::string const guard = at + 512 > box ? "@%p2 " : "";
    if (!guard.empty()) body += "setp.lt.u32 %p2, %thread, " + number((box - at) / 4) + ";\n";
    body += guard + "ld.shared.u32 %r4, [%r3+" + number(at) + "];\n" + guard + "st.global.u32 [%out+" + number(at) + "], %r4;\n";
  }
  Program program{name,
                  kernel(".reg .b32 %r<5>;\n.reg .b64 %d<4>;\n.reg .pred %p<3>;\n", body, 128),
                  kBoxCtas,
                  128,
                  kBarrier + box,
                  {},
                  std::size_t{kBoxCtas} * box};
  program.boxes = tensor;
  program.input.resize(tensor.offset + std::size_t{tensor.rows} * tensor.columns * tensor.element_bytes);
  Numbers numbers(seed_of(name));
  for (std::size_t i = tensor.offset; i < program.input.size(); ++i) program.input[i] = static_cast<std::uint8_t>(numbers.word());
  for (std::uint32_t cta = 0; cta < kBoxCtas; ++cta) {
    // From a box before the tensor to a box behind it; rows of boxes begin at multiples of 16 bytes.
    std::uint32_t const step = 16 / tensor.element_bytes, columns = tensor.columns + 2 * tensor.box_columns;
    std::int32_t const column =
        static_cast<std::int32_t>(numbers.below(columns / step + 1) * step) - static_cast<std::int32_t>(tensor.box_columns);
    std::int32_t const row =
        static_cast<std::int32_t>(numbers.below(tensor.rows + 2 * tensor.box_rows + 1)) - static_cast<std::int32_t>(tensor.box_rows);
    std::memcpy(program.input.data() + 8 * cta, &column, 4);
    std::memcpy(program.input.data() + 8 * cta + 4, &row, 4);
  }
  return program;
}

/// Plain bulk copies of random lengths.
Program bulk_copy() {
  constexpr std::uint32_t kBulkCtas = 32, kMost = 4096, kData = 256;
  std::string const name = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes";
  std::string body =
      "mul.wide.u32 %d0, %cta, 8;\nadd.s64 %d0, %in, %d0;\nld.global.v2.u32 {%r0, %r1}, [%d0];\nadd.s32 %r2, %smem, 1024;\n"
      "cvt.u64.u32 %d1, %r1;\nadd.s64 %d1, %in, %d1;\nsetp.eq.s32 %p1, %thread, 0;\n@!%p1 bra $others;\n"
      "mbarrier.init.shared.b64 [%smem], 1;\nfence.mbarrier_init.release.cluster;\n"
      "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %d2, [%smem], %r0;\n" +
      name + " [%r2], [%d1], %r0, [%smem];\n$others:\nbar.sync 0;\n$" + kWait + "mul.wide.u32 %d3, %cta, " + number(kMost) +
      ";\nadd.s64 %out, %out, %d3;\nmul.wide.u32 %d3, %thread, 4;\nadd.s64 %out, %out, %d3;\n"
      "mad.lo.s32 %r3, %thread, 4, %r2;\nshr.u32 %r0, %r0, 2;\nmov.u32 %r5, %thread;\n"
      "$next:\nsetp.ge.u32 %p2, %r5, %r0;\n@%p2 bra $done;\nld.shared.u32 %r4, [%r3];\nst.global.u32 [%out], %r4;\n"
      "add.s32 %r3, %r3, 512;\nadd.s64 %out, %out, 512;\nadd.s32 %r5, %r5, 128;\nbra.uni $next;\n$done:\n";
  Program program{name,
                  kernel(".reg .b32 %r<6>;\n.reg .b64 %d<4>;\n.reg .pred %p<3>;\n", body, 128),
                  kBulkCtas,
                  128,
                  1024 + kMost,
                  {},
                  std::size_t{kBulkCtas} * kMost};
  Numbers numbers(seed_of(name));
  program.input.resize(kData + 3 * kMost);
  for (std::size_t i = kData; i < program.input.size(); ++i) program.input[i] = static_cast<std::uint8_t>(numbers.word());
  for (std::uint32_t cta = 0; cta < kBulkCtas; ++cta) {
    std::uint32_t const bytes = 16 * (1 + numbers.below(kMost / 16));
    std::uint32_t const from = kData + 16 * numbers.below(2 * kMost / 16);
    std::memcpy(program.input.data() + 8 * cta, &bytes, 4);
    std::memcpy(program.input.data() + 8 * cta + 4, &from, 4);
  }
  return program;
}

/// Warps hand words round a ring through shared memory, 64 times: an mbarrier for full, one for empty, waits by parity.
Program barrier_ring() {
  constexpr std::uint32_t kRounds = 64;
  std::string const name = "mbarrier.arrive.shared.b64";
  // Warp 0 writes word i of the input plus what came before; warp 1 reads it, mixes and stores.
  std::string const body =
      "setp.eq.s32 %p1, %thread, 0;\n@!%p1 bra $ready;\nmbarrier.init.shared.b64 [%smem], 32;\nmbarrier.init.shared.b64 [%smem+8], 32;\n"
      "fence.mbarrier_init.release.cluster;\n$ready:\nbar.sync 0;\n"
      "mul.wide.u32 %d0, %cta, " +
      number(kRounds * 128) +
      ";\nadd.s64 %in, %in, %d0;\nadd.s64 %out, %out, %d0;\nmul.wide.u32 %d0, %lane, 4;\n"
      "add.s64 %in, %in, %d0;\nadd.s64 %out, %out, %d0;\nmad.lo.s32 %r0, %lane, 4, %smem;\nxor.b32 %r1, %lane, 5;\nmad.lo.s32 %r1, %r1, 4, "
      "%smem;\n"
      "mov.u32 %r2, 0;\nmov.u32 %r3, 0;\nsetp.lt.u32 %p1, %thread, 32;\n@!%p1 bra $reader;\n"
      "$write:\nld.global.u32 %r4, [%in];\nadd.s32 %r3, %r3, %r4;\nst.shared.u32 [%r0+64], %r3;\nmbarrier.arrive.shared.b64 %d1, [%smem];\n"
      "and.b32 %r5, %r2, 1;\n$empty:\nmbarrier.try_wait.parity.shared::cta.b64 %p0, [%smem+8], %r5;\n@!%p0 bra $empty;\n"
      "add.s64 %in, %in, 128;\nadd.s32 %r2, %r2, 1;\nsetp.lt.u32 %p2, %r2, " +
      number(kRounds) +
      ";\n@%p2 bra $write;\nbra.uni $end;\n"
      "$reader:\nand.b32 %r5, %r2, 1;\n$full:\nmbarrier.try_wait.parity.shared::cta.b64 %p0, [%smem], %r5;\n@!%p0 bra $full;\n"
      "ld.shared.u32 %r4, [%r1+64];\nxor.b32 %r3, %r3, %r4;\nst.global.u32 [%out], %r3;\nbar.warp.sync -1;\nmbarrier.arrive.shared.b64 "
      "%d1, [%smem+8];\n"
      "add.s64 %out, %out, 128;\nadd.s32 %r2, %r2, 1;\nsetp.lt.u32 %p2, %r2, " +
      number(kRounds) + ";\n@%p2 bra $reader;\n$end:\n";
  constexpr std::uint32_t kRingCtas = 8;
  Program program{name,
                  kernel(".reg .b32 %r<6>;\n.reg .b64 %d<2>;\n.reg .pred %p<3>;\n", body, 64),
                  kRingCtas,
                  64,
                  1024,
                  {},
                  std::size_t{kRingCtas} * kRounds * 128};
  program.input.resize(program.output_bytes);
  Numbers numbers(seed_of(name));
  for (std::uint8_t& byte : program.input) byte = static_cast<std::uint8_t>(numbers.word());
  return program;
}

/// %d0: 16 bytes of output a thread.
std::string const kWideOutput = "mad.wide.u32 %d0, %all, 8, %out;\n";

/// Loads and stores of one width through shared memory: words, as v2 and v4 too.
void add_memory(std::vector<Program>& programs) {
  add(programs,
      {
          {"ld.global.v2.f32", "ff=", "ld.global.v2.f32 {%x, %y}, [%from+8];"},
          {"ld.global.v4.f32", "ffff=", "ld.global.v4.f32 {%x, %y, %z, %w}, [%from+16];"},
          {"ld.global.v2.u32", "rr=", "ld.global.v2.u32 {%x, %y}, [%from+8];"},
          {"ld.global.v4.u32", "rrrr=", "ld.global.v4.u32 {%x, %y, %z, %w}, [%from+16];"},
          {"ld.global.u8", "r=", "ld.global.u8 %x, [%from+5];"},
          {"ld.global.s32", "r=", "ld.global.s32 %x, [%from+4];"},
          {"ld.global.u64", "d=", "ld.global.u64 %x, [%from+24];"},
          {"st.global.u16", "=h", "st.global.u16 [%out+2], %a;\nst.global.u32 [%out+4], %thread;", 0, 1},
          {"st.global.v2.f32", "=ff", "st.global.v2.f32 [%out], {%b, %a};", 0, 1},
          {"st.shared.v4.f32", "f=ffff", "st.shared.v4.f32 [%own+16], {%a, %b, %c, %d};\nld.shared.f32 %x, [%own+24];"},
          {"ld.shared.v4.f32", "ffff=ffff", "st.shared.v4.f32 [%own], {%b, %a, %d, %c};\nld.shared.v4.f32 {%x, %y, %z, %w}, [%own];"},
          {"ld.shared.v2.u32", "rr=rrrr", "st.shared.v4.u32 [%own], {%a, %b, %c, %d};\nld.shared.v2.u32 {%x, %y}, [%own+8];"},
          // The word of another thread, beyond a barrier.
          {"bar.sync", "r=rr",
           "st.shared.u32 [%own], %a;\nbar.sync 0;\nand.b32 %r0, %b, 255;\nmad.lo.s32 %r0, %r0, 32, %smem;\nld.shared.u32 %x, [%r0];"},
          {"bar.warp.sync", "r=rl",
           "st.shared.u32 [%own], %a;\nbar.warp.sync -1;\nxor.b32 %r0, %thread, %b;\nmad.lo.s32 %r0, %r0, 32, %smem;\nld.shared.u32 %x, "
           "[%r0];"},
          {"st.global.v4.f32", "=ffff", kWideOutput + "st.global.v4.f32 [%d0], {%d, %a, %c, %b};", 0, 2},
      });
}

/// The same for preparation and grouping, and local memory and generic addresses.
void add_more_memory(std::vector<Program>& programs) {
  std::string const local = "mov.u64 %d0, stack;\n", shared = "cvt.u64.u32 %d0, %own;\ncvta.shared.u64 %d0, %d0;\n";
  // An address that the compiler does not know: %d1, `mask` of the operand %e away from %d0.
  auto const away = [](int mask) {
    return "and.b32 %r0, %e, " + number(static_cast<std::uint64_t>(mask)) + ";\ncvt.u64.u32 %d1, %r0;\nadd.s64 %d1, %d0, %d1;\n";
  };
  add(programs,
      {
          {"ld.global.nc.f32", "f=", "ld.global.nc.f32 %x, [%from+4];"},
          {"ld.global.nc.u16", "h=", "ld.global.nc.u16 %x, [%from+10];"},
          {"ld.global.nc.v4.u32", "rrrr=", "ld.global.nc.v4.u32 {%x, %y, %z, %w}, [%from+16];"},
          {"ld.global.u16", "r=", "ld.global.u16 %x, [%from+6];"},
          {"ld.global.s32 to 64 bits", "d=", "ld.global.s32 %x, [%from+12];"},
          {"st.global.u32 from 64 bits", "=d", "st.global.u32 [%out+4], %a;", 0, 1},
          {"st.global.u8", "=h", "st.global.u8 [%out+3], %a;\nst.global.u32 [%out+4], %thread;", 0, 1},
          {"st.global.u64", "=d", "st.global.u64 [%out], %a;", 0, 1},
          {"st.global.v2.u32", "=rr", "st.global.v2.u32 [%out], {%b, %a};", 0, 1},
          {"st.global.v4.u32", "=rrrr", kWideOutput + "st.global.v4.u32 [%d0], {%d, %a, %c, %b};", 0, 2},
          {"st.global.cs.u32", "=r", "st.global.cs.u32 [%out+4], %a;", 0, 1},
          {"st.global.cs.v2.u32", "=rr", "st.global.cs.v2.u32 [%out], {%b, %a};", 0, 1},
          {"st.global.cs.v4.u32", "=rrrr", kWideOutput + "st.global.cs.v4.u32 [%d0], {%d, %a, %c, %b};", 0, 2},
          {"ld.shared.s32", "dr=r", "st.shared.u32 [%own], %a;\nld.shared.s32 %x, [%own];\nld.shared.s32 %y, [%own];"},
          {"ld.shared.u16", "rh=r", "st.shared.u32 [%own], %a;\nld.shared.u16 %x, [%own+2];\nld.shared.u16 %y, [%own];"},
          {"ld.shared.u64", "d=dd", "st.shared.u64 [%own], %a;\nst.shared.u64 [%own+8], %b;\nld.shared.u64 %x, [%own+8];"},
          {"ld.shared.f64", "F=FF", "st.shared.f64 [%own], %a;\nst.shared.f64 [%own+8], %b;\nld.shared.f64 %x, [%own+8];"},
          {"ld.shared.v2.f64", "FF=FF",
           "st.shared.f64 [%own+24], %a;\nst.shared.f64 [%own+16], %b;\nld.shared.v2.f64 {%x, %y}, [%own+16];"},
          {"ld.shared.v2.f32", "ff=ffff", "st.shared.v4.f32 [%own], {%a, %b, %c, %d};\nld.shared.v2.f32 {%x, %y}, [%own+8];"},
          {"st.shared.f32", "ff=ff", "st.shared.f32 [%own+4], %a;\nst.shared.f32 [%own], %b;\nld.shared.v2.f32 {%x, %y}, [%own];"},
          {"st.shared.v2.f32", "f=ff", "st.shared.v2.f32 [%own+8], {%a, %b};\nld.shared.f32 %x, [%own+12];"},
          {"st.shared.v2.u32", "r=rr", "st.shared.v2.u32 [%own+8], {%a, %b};\nld.shared.u32 %x, [%own+12];"},
          {"st.shared.u16", "r=rh", "st.shared.u32 [%own], %a;\nst.shared.u16 [%own+2], %b;\nld.shared.u32 %x, [%own];"},
          {"st.shared.u8", "r=rrh",
           "st.shared.u32 [%own], %a;\nst.shared.u8 [%own+1], %b;\nst.shared.u8 [%own+3], %c;\nld.shared.u32 %x, [%own];"},
          {"ld.local.f32", "f=ffffr", local + away(12) + "st.local.v4.f32 [%d0], {%a, %b, %c, %d};\nld.local.f32 %x, [%d1];"},
          {"ld.local.v2.f32", "ff=ffffr", local + away(8) + "st.local.v4.f32 [%d0], {%a, %b, %c, %d};\nld.local.v2.f32 {%x, %y}, [%d1];"},
          {"ld.local.v4.f32", "ffff=ffffr",
           local + away(16) +
               "st.local.v4.f32 [%d0], {%a, %b, %c, %d};\nst.local.v4.f32 [%d0+16], {%d, %c, %b, %a};\n"
               "ld.local.v4.f32 {%x, %y, %z, %w}, [%d1];"},
          {"st.local.v2.f32", "ffff=ffffr",
           local + away(8) +
               "st.local.v4.f32 [%d0], {%a, %b, %c, %d};\nst.local.v2.f32 [%d1], {%d, %b};\nld.local.v4.f32 {%x, %y, %z, %w}, [%d0];"},
          {"st.local.v2.u32", "rrrr=rrrrr",
           local + away(8) +
               "st.local.v2.u32 [%d0], {%a, %b};\nst.local.v2.u32 [%d0+8], {%c, %d};\nst.local.v2.u32 [%d1], {%d, %b};\n"
               "ld.local.v4.u32 {%x, %y, %z, %w}, [%d0];"},
          {"st.local.u32", "rr=rrddr",
           local + away(4) +
               "st.local.u32 [%d0], %a;\nst.local.u32 [%d0+4], %a;\nst.local.u32 [%d1], %b;\nld.local.v2.u32 {%x, %y}, [%d0];"},
          {"st.local.u64", "dd=ddddr",
           local + away(8) +
               "st.local.u64 [%d0], %a;\nst.local.u64 [%d0+8], %a;\nst.local.u64 [%d1], %b;\nld.local.u64 %x, [%d0];\nld.local.u64 %y, "
               "[%d0+8];"},
          {"st.local.v4.u8", "rr=hhhhr",
           local + away(4) +
               "st.local.v2.u32 [%d0], {%r0, %e};\nst.local.v4.u8 [%d1], {%a, %b, %c, %d};\nld.local.v2.u32 {%x, %y}, [%d0];"},
          // Generic addresses of shared, local and global memory.
          {"ld.f32", "ff=ff",
           shared + "st.shared.v2.f32 [%own], {%a, %b};\nld.f32 %x, [%d0+4];\ncvta.global.u64 %d1, %from;\nld.f32 %y, [%d1];"},
          {"ld.u16", "hh=hh",
           shared + "st.shared.u16 [%own+2], %a;\nld.u16 %x, [%d0+2];\ncvta.global.u64 %d1, %from;\nld.u16 %y, [%d1+6];"},
          {"ld.u32", "rr=rr",
           shared + "st.shared.v2.u32 [%own], {%a, %b};\nld.u32 %x, [%d0+4];\ncvta.global.u64 %d1, %from;\nld.u32 %y, [%d1];"},
          {"ld.u64", "dd=d", shared + "st.shared.u64 [%own+8], %a;\nld.u64 %x, [%d0+8];\ncvta.global.u64 %d1, %from;\nld.u64 %y, [%d1+8];"},
          {"cvta.to.shared.u64", "r=r",
           shared + "cvta.to.shared.u64 %d1, %d0;\ncvt.u32.u64 %r0, %d1;\nst.shared.u32 [%r0], %a;\nld.u32 %x, [%d0];"},
          {"cvta.to.local.u64", "r=rrrrr",
           local + away(12) +
               "st.local.v2.u32 [%d0], {%a, %b};\nst.local.v2.u32 [%d0+8], {%c, %d};\ncvta.local.u64 %d1, %d1;\n"
               "cvta.to.local.u64 %d2, %d1;\nst.local.u32 [%d2], %e;\nld.u32 %x, [%d1];"},
      });
}

}  // namespace

std::vector<Program> attention_programs() {
  std::vector<Program> programs;
  add(programs, "r=rr",
      {"add.s32", "sub.s32", "mul.lo.s32", "div.s32", "div.u32", "rem.u32", "min.s32", "min.u32", "max.s32", "max.u32", "and.b32", "or.b32",
       "xor.b32"});
  add(programs, "r=r", {"mov.b32", "mov.u32", "not.b32", "brev.b32", "bfind.shiftamt.u32"});
  add(programs, "r=rs", {"shl.b32", "shr.u32", "shr.s32"});
  add(programs, "d=dd", {"add.s64", "mul.lo.s64", "mul.hi.s64", "or.b64"});
  add(programs, "d=ds", {"shl.b64", "shr.u64", "shr.s64"});
  add(programs, "d=rr", {"mul.wide.s32", "mul.wide.u32"});
  add(programs, "d=d", {"mov.u64"});
  add(programs, "d=r", {"cvt.u64.u32", "cvt.s64.s32"});
  add(programs, "r=rrr", {"mad.lo.s32", "prmt.b32"});
  add(programs, "r=rrp", {"selp.b32", "selp.u32"});
  add(programs, "f=ffp", {"selp.f32"});
  add(programs, "d=ddp", {"selp.b64"});
  add(programs, "p=rr",
      {"setp.eq.b32", "setp.ne.b32", "setp.eq.s32", "setp.ne.s32", "setp.lt.s32", "setp.le.s32", "setp.gt.s32", "setp.ge.s32",
       "setp.lt.u32", "setp.le.u32", "setp.gt.u32", "setp.ge.u32"});
  add(programs, "p=dd", {"setp.eq.s64", "setp.ge.s64", "setp.le.s64"});
  add(programs, "p=fc",
      {"setp.eq.f32", "setp.lt.f32", "setp.gt.f32", "setp.neu.f32", "setp.leu.f32", "setp.geu.f32", "setp.nan.f32", "setp.num.f32"});
  add(programs, "p=pp", {"and.pred", "or.pred"});
  add(programs, "p=p", {"not.pred"});
  add(programs, "f=f", {"mov.f32", "cvt.rpi.f32.f32"});
  add(programs, "f=fc", {"add.rn.f32", "sub.rn.f32", "sub.rm.f32"});
  add(programs, "f=ff", {"mul.rn.f32", "mul.rp.f32", "div.rn.f32", "min.f32", "max.f32"});
  add(programs, "f=ffc", {"fma.rn.f32"});
  add(programs, "r=xx", {"max.f16x2"});
  add(programs, "r=xxx", {"fma.rn.f16x2", "fma.rn.relu.f16x2"});
  add(programs, "r=ff", {"cvt.rn.f16x2.f32"});
  add(programs, "h=ff", {"cvt.rn.satfinite.e4m3x2.f32"});
  add(programs, "r=f", {"cvt.rzi.s32.f32"});
  add(programs, "f=r", {"cvt.rn.f32.s32", "cvt.rn.f32.u32"});
  add(programs, "f=h", {"cvt.rn.f32.s16"});
  add(programs, "f=X", {"cvt.f32.f16"});
  add(programs, "h=f", {"cvt.rn.f16.f32"});
  add(programs, "r=h", {"cvt.u32.u16", "cvt.s32.s16"});
  add(programs, "r=d", {"cvt.u32.u64"});
  add(programs, {
                    {"ex2.approx.ftz.f32", "f=f", {}, 2},
                    {"bfi.b32", "r=rrss", "and.b32 %c, %c, 31;\nand.b32 %d, %d, 31;\nbfi.b32 %x, %a, %b, %c, %d;"},
                    {"mov.b32 {h, h}", "hh=r", "mov.b32 {%x, %y}, %a;"},
                    {"mov.b32 r, {h, h}", "r=hh", "mov.b32 %x, {%a, %b};"},
                    {"mov.b64 {r, r}", "rr=d", "mov.b64 {%x, %y}, %a;"},
                    {"mov.b64 d, {r, r}", "d=rr", "mov.b64 %x, {%a, %b};"},
                    {"shfl.sync.up.b32", "rp=rl", "shfl.sync.idx.b32 %r0|%p0, %b, 0, 31, -1;\nshfl.sync.up.b32 %x|%y, %a, %r0, 0, -1;"},
                    {"shfl.sync.up.b32 by lanes", "rp=rl", "shfl.sync.up.b32 %x|%y, %a, %b, 0, -1;"},
                    {"shfl.sync.up.b32 in segments", "rp=rl", "shfl.sync.up.b32 %x|%y, %a, %b, 6144, -1;"},
                    {"shfl.sync.idx.b32", "rp=rl", "shfl.sync.idx.b32 %x|%y, %a, %b, 31, -1;"},
                    {"shfl.sync.idx.b32 in segments", "rp=rl", "shfl.sync.idx.b32 %x|%y, %a, %b, 7199, -1;"},
                    {"shfl.sync.bfly.b32", "rp=rl", "shfl.sync.bfly.b32 %x|%y, %a, %b, 31, -1;"},
                    {"shfl.sync.bfly.b32 clamped", "rp=rl", "shfl.sync.bfly.b32 %x|%y, %a, %b, 20, -1;"},
                    {"vote.sync.ballot.b32", "r=p", "vote.sync.ballot.b32 %x, %a, -1;"},
                    {"vote.sync.any.pred", "p=l", "setp.eq.s32 %p0, %a, 7;\nvote.sync.any.pred %x, %p0, -1;"},
                    {"redux.sync.add.u32", "r=r", "redux.sync.add.u32 %x, %a, -1;"},
                    {"redux.sync.min.u32", "r=r", "redux.sync.min.u32 %x, %a, -1;"},
                    {"redux.sync.max.u32", "r=r", "redux.sync.max.u32 %x, %a, -1;"},
                    // One lane, whichever.
                    {"elect.sync", "rr=",
                     "elect.sync %r0|%p0, -1;\nvote.sync.ballot.b32 %r1, %p0, -1;\nadd.s32 %r2, %r1, -1;\nand.b32 %x, %r1, %r2;\n"
                     "mov.u32 %r3, 1;\nshl.b32 %r3, %r3, %r0;\nsub.s32 %y, %r3, %r1;"},
                    // Lanes part by their operand and meet again.
                    {"bra", "r=rl",
                     "mov.u32 %x, %a;\n$loop:\nsetp.eq.s32 %p0, %b, 0;\n@%p0 bra $leave;\nmad.lo.s32 %x, %x, 5, %b;\nadd.s32 %b, %b, "
                     "-1;\nbra.uni $loop;\n"
                     "$leave:\nbar.warp.sync -1;\nshfl.sync.bfly.b32 %r0|%p1, %x, 3, 31, -1;\nxor.b32 %x, %x, %r0;"},
                });
  add_memory(programs);
  for (std::uint32_t const steps : {1u, 4u}) {
    for (Product const& p : {Product{"wgmma.mma_async.sync.aligned.m64n128k32.f16.e4m3.e4m3", Codes::e4m3, 128, false, true, steps},
                             Product{"wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3", Codes::e4m3, 128, false, false, steps},
                             Product{"wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8", Codes::s8, 128, false, false, steps},
                             Product{"wgmma.mma_async.sync.aligned.m64n136k32.f32.e4m3.e4m3", Codes::e4m3, 136, true, false, steps},
                             Product{"wgmma.mma_async.sync.aligned.m64n72k32.f32.e4m3.e4m3", Codes::e4m3, 72, true, false, steps},
                             Product{"wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16", Codes::f16, 128, true, false, steps},
                             Product{"wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16", Codes::f16, 64, true, false, steps}}) {
      programs.push_back(product(p));
    }
  }
  programs.push_back(bulk_copy());
  programs.push_back(barrier_ring());
  return programs;
}

std::vector<Program> box_programs() {
  std::vector<Program> programs;
  programs.push_back(boxes("cp.async.bulk.tensor.2d, 128 bytes", {0, 300, 208, 1, 64, 128, 3}));
  programs.push_back(boxes("cp.async.bulk.tensor.2d, 64 bytes", {0, 300, 144, 1, 128, 64, 2}));
  programs.push_back(boxes("cp.async.bulk.tensor.2d, 32 bytes", {0, 100, 80, 1, 24, 32, 1}));
  programs.push_back(boxes("cp.async.bulk.tensor.2d, FP16, 128 bytes", {0, 100, 200, 2, 16, 64, 3}));
  programs.push_back(boxes("cp.async.bulk.tensor.2d, FP16, 64 bytes", {0, 100, 200, 2, 40, 32, 2}));
  programs.push_back(boxes("cp.async.bulk.tensor.2d, no swizzle", {0, 100, 240, 1, 24, 80, 0}));
  return programs;
}

std::vector<Program> preparation_programs() {
  std::vector<Program> programs;
  add(programs, "d=dd", {"add.u64", "sub.s64", "and.b64", "xor.b64", "max.s64", "min.s64", "div.s64"});
  add(programs, "d=d", {"neg.s64", "not.b64"});
  add(programs, "r=r", {"neg.s32", "popc.b32"});
  add(programs, "r=rr", {"rem.s32"});
  add(programs, "h=hh", {"and.b16", "add.s16"});
  add(programs, "r=hh", {"mul.wide.u16"});
  add(programs, "h=h", {"mov.u16"});
  add(programs, "h=hhp", {"selp.b16", "selp.u16"});
  add(programs, "p=hh", {"setp.eq.s16", "setp.ne.s16", "setp.gt.u16", "setp.lt.u16"});
  add(programs, "p=dd", {"setp.gt.s64", "setp.lt.s64", "setp.ne.s64", "setp.lt.u64"});
  add(programs, "p=rr", {"setp.ne.u32"});
  add(programs, "p=pp", {"xor.pred"});
  add(programs, "p=fc", {"setp.le.f32", "setp.ltu.f32"});
  add(programs, "p=FF", {"setp.gt.f64", "setp.gtu.f64", "setp.leu.f64"});
  add(programs, "f=f", {"abs.f32", "neg.f32", "rcp.rn.f32", "sqrt.rn.f32"});
  add(programs, "f=ff", {"copysign.f32"});
  add(programs, "F=F", {"mov.f64", "neg.f64", "cvt.rpi.f64.f64"});
  add(programs, "F=FF", {"add.rn.f64", "mul.rn.f64", "div.rn.f64", "max.f64"});
  add(programs, "F=FFp", {"selp.f64"});
  add(programs, "F=f", {"cvt.f64.f32"});
  add(programs, "F=r", {"cvt.rn.f64.s32"});
  add(programs, "f=F", {"cvt.rn.f32.f64"});
  add(programs, "f=d", {"cvt.rn.f32.s64"});
  add(programs, "f=h", {"cvt.rn.f32.u16"});
  add(programs, "h=r", {"cvt.u16.u32"});
  add(programs, "d=h", {"cvt.u64.u16"});
  add(programs, "r=f", {"cvt.rzi.u32.f32"});
  add(programs, "h=f", {"cvt.rn.bf16.f32"});
  add(programs, "f=B", {"cvt.f32.bf16"});
  add(programs, "r=ff", {"cvt.rn.bf16x2.f32"});
  add(programs, "r=yy", {"sub.bf16x2", "set.eq.bf16x2.bf16x2"});
  add(programs, "r=e", {"cvt.rn.f16x2.e4m3x2"});
  add(programs, "r=yyy", {"fma.rn.bf16x2"});
  add(programs, "r=rrr", {"dp4a.s32.s32"});
  add(programs,
      {
          {"mov.b64", "d=d"},
          {"cvt.s64.s32 from 64 bits", "d=d", "cvt.s64.s32 %x, %a;"},
          {"xor.pred with a number", "p=p", "xor.pred %x, %a, -1;"},
          {"mov.pred", "pp=p", "mov.pred %x, %a;\nmov.pred %y, 0;"},
          {"bfi.b64", "d=ddss", "and.b32 %c, %c, 63;\nand.b32 %d, %d, 63;\nbfi.b64 %x, %a, %b, %c, %d;"},
          {"bfi.b64 of words", "d=dd", "bfi.b64 %x, %a, %b, 32, 32;"},
          {"shfl.sync.down.b32", "rp=rl", "shfl.sync.idx.b32 %r0|%p0, %b, 0, 31, -1;\nshfl.sync.down.b32 %x|%y, %a, %r0, 31, -1;"},
          {"shfl.sync.down.b32 by lanes", "rp=rl", "shfl.sync.down.b32 %x|%y, %a, %b, 31, -1;"},
          {"shfl.sync.down.b32 in segments", "rp=rl", "shfl.sync.down.b32 %x|%y, %a, %b, 6175, -1;"},
          {"redux.sync.add.s32", "r=r", "redux.sync.add.s32 %x, %a, -1;"},
          {"match.any.sync.b32", "r=l", "match.any.sync.b32 %x, %a, -1;"},
          {"bar.red.or.pred", "p=r", "setp.eq.s32 %p0, %a, 1;\nbar.red.or.pred %x, 0, %p0;"},
          {"ldmatrix.sync.aligned.m8n8.x4.shared.b16", "rrrr=rrrrl",
           "mad.lo.s32 %r0, %thread, 16, %smem;\nst.shared.v4.u32 [%r0], {%a, %b, %c, %d};\nbar.warp.sync -1;\nxor.b32 %r1, %thread, %e;\n"
           "mad.lo.s32 %r1, %r1, 16, %smem;\nldmatrix.sync.aligned.m8n8.x4.shared.b16 {%x, %y, %z, %w}, [%r1];"},
          {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", "rrrr=rrrrl",
           "mad.lo.s32 %r0, %thread, 16, %smem;\nst.shared.v4.u32 [%r0], {%a, %b, %c, %d};\nbar.warp.sync -1;\nxor.b32 %r1, %thread, %e;\n"
           "mad.lo.s32 %r1, %r1, 16, %smem;\nldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%x, %y, %z, %w}, [%r1];"},
          {"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", "rrrr=rrrrrrrrrr",
           "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%x, %y, %z, %w}, {%a, %b, %c, %d}, {%e, %f}, {%g, %h, %i, %j};"},
          {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "ffff=YYYYYYgggg",
           "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%x, %y, %z, %w}, {%a, %b, %c, %d}, {%e, %f}, {%g, %h, %i, %j};"},
          {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32, any", "ffff=yyyyyyffff",
           "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%x, %y, %z, %w}, {%a, %b, %c, %d}, {%e, %f}, {%g, %h, %i, %j};"},
          {"cp.async.cg.shared.global", "rrrr=",
           "cp.async.cg.shared.global [%own], [%from+16], 16;\ncp.async.commit_group;\ncp.async.wait_group 0;\n"
           "ld.shared.v4.u32 {%x, %y, %z, %w}, [%own];"},
          // Zeros behind the bytes that are copied.
          {"cp.async.cg.shared.global of fewer bytes", "rrrr=l",
           "min.u32 %r0, %a, 16;\ncp.async.cg.shared.global [%own], [%from+16], 16, %r0;\ncp.async.commit_group;\ncp.async.wait_group 0;\n"
           "ld.shared.v4.u32 {%x, %y, %z, %w}, [%own];"},
          {"cp.async.ca.shared.global", "rr=",
           "cp.async.ca.shared.global [%own], [%from+4], 4;\ncp.async.ca.shared.global [%own+8], [%from+8], 8;\n"
           "cp.async.commit_group;\ncp.async.wait_group 0;\nld.shared.u32 %x, [%own];\nld.shared.u32 %y, [%own+12];"},
          {"atom.global.add.u32", "r=r", "add.s64 %d0, %out, 4;\natom.global.add.u32 %x, [%d0], %a;"},
          {"atom.global.max.u32", "r=r", "add.s64 %d0, %out, 4;\natom.global.max.u32 %x, [%d0], %a;"},
          {"atom.shared.add.u32", "rr=rr", "st.shared.u32 [%own], %a;\natom.shared.add.u32 %x, [%own], %b;\nld.shared.u32 %y, [%own];"},
          {"atom.shared.max.u32", "rr=rr", "st.shared.u32 [%own], %a;\natom.shared.max.u32 %x, [%own], %b;\nld.shared.u32 %y, [%own];"},
          {"atom.shared.or.b32", "rr=rr", "st.shared.u32 [%own], %a;\natom.shared.or.b32 %x, [%own], %b;\nld.shared.u32 %y, [%own];"},
      });
  add_more_memory(programs);
  return programs;
}

}  // namespace vcattn::emulator::proof
