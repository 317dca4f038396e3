// Arithmetic of single instructions, for random operands and special values.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <random>

#include "core/e4m3.hpp"
#include "core/half.hpp"
#include "emulator/matrix_kernels.hpp"
#include "emulator/tests/program.hpp"
#include "reference/codecs.hpp"
#include "reference/tensor_core.hpp"

namespace vcattn::emulator {
namespace {

constexpr std::uint32_t kThreads = 256, kCtas = 64;

float number(std::uint32_t x) { return std::bit_cast<float>(x); }
std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

/// Random bits, numbers of moderate size, and special values. half: both halves are FP16 numbers.
std::vector<std::uint32_t> operands(unsigned seed, bool half) {
  constexpr std::uint32_t kSpecial[] = {0, 0x80000000u, 0x7F800000u, 0xFF800000u, 0x7FC00001u,
                                        1, 0x007FFFFFu, 0x3F800000u, 0x7F7FFFFFu, 0x47800000u};
  constexpr std::uint32_t kSpecialHalf[] = {0, 0x8000u, 0x7C00u, 0xFC00u, 0x7E01u, 1, 0x3FFu, 0x3C00u, 0x7BFFu, 0x400u};
  std::mt19937 random(seed);
  std::vector<std::uint32_t> words;
  for (std::uint32_t i = 0; i < kThreads * kCtas; ++i) {
    switch (random() % 4) {
      case 0:
        words.push_back(half ? kSpecialHalf[random() % 10] | (kSpecialHalf[random() % 10] << 16) : kSpecial[random() % 10]);
        break;
      case 1:
        words.push_back(static_cast<std::uint32_t>(random()));
        break;
      default: {
        auto const small = [&] {
          return (static_cast<float>(random() % 65536) - 32768.0f) * std::ldexp(1.0f, static_cast<int>(random() % 24) - 20);
        };
        words.push_back(half ? static_cast<std::uint32_t>(random()) & 0xBFFFBFFFu : bits(small()));
      }
    }
  }
  return words;
}

using Expected = std::function<std::uint32_t(std::uint32_t, std::uint32_t, std::uint32_t)>;

/// instruction: from %r1, %r2, %r3 to %r0.
void check(std::string const& instruction, bool half, Expected const& expected) {
  Program program{operands(1, half), operands(2, half), operands(3, half), kThreads, kCtas};
  auto const out = program.run("  ld.global.u32 %r1, [%rd2];\n  ld.global.u32 %r2, [%rd3];\n  ld.global.u32 %r3, [%rd4];\n  " +
                               instruction + "\n  st.global.u32 [%rd1], %r0;\n");
  int wrong = 0;
  for (std::size_t i = 0; i < out.size() && wrong < 5; ++i) {
    std::uint32_t const right = expected(program.a[i], program.b[i], program.c[i]);
    if (out[i] == right) continue;
    ++wrong;
    ADD_FAILURE() << instruction << " of " << std::hex << program.a[i] << ", " << program.b[i] << ", " << program.c[i] << " is " << out[i]
                  << ", expected " << right;
  }
}

std::uint32_t canonical(float x) { return x == x ? bits(x) : 0x7FFFFFFFu; }
std::uint32_t halves(std::uint32_t low, std::uint32_t high) { return low | (high << 16); }
double half(std::uint32_t h) { return reference::fp16().decode(h & 0xFFFFu); }
std::uint32_t encode_half(double x) { return x == x ? reference::fp16().encode(x) : 0x7FFFu; }
bool half_nan(std::uint32_t h) { return (h & 0x7FFFu) > 0x7C00u; }

TEST(Instructions, Fp32) {
  check("add.rn.f32 %r0, %r1, %r2;", false, [](auto a, auto b, auto) { return canonical(number(a) + number(b)); });
  check("mul.rn.f32 %r0, %r1, %r2;", false, [](auto a, auto b, auto) { return canonical(number(a) * number(b)); });
  check("fma.rn.f32 %r0, %r1, %r2, %r3;", false,
        [](auto a, auto b, auto c) { return canonical(std::fma(number(a), number(b), number(c))); });
  check("div.rn.f32 %r0, %r1, %r2;", false, [](auto a, auto b, auto) { return canonical(number(a) / number(b)); });
  check("cvt.rpi.f32.f32 %r0, %r1;", false, [](auto a, auto, auto) { return canonical(std::ceil(number(a))); });
  check("cvt.rzi.s32.f32 %r0, %r1;", false, [](auto a, auto, auto) {
    double const x = static_cast<double>(number(a));
    return x != x ? 0u : static_cast<std::uint32_t>(static_cast<std::int32_t>(std::clamp(std::trunc(x), -2147483648.0, 2147483647.0)));
  });
  check("mul.rp.f32 %r0, %r1, %r2;", false, [](auto a, auto b, auto) {
    double const exact = static_cast<double>(number(a)) * static_cast<double>(number(b));
    auto r = static_cast<float>(exact);
    if (static_cast<double>(r) < exact) r = std::nextafter(r, INFINITY);
    return canonical(r);
  });
}

TEST(Instructions, Fp16) {
  check("fma.rn.f16x2 %r0, %r1, %r2, %r3;", true, [](auto a, auto b, auto c) {
    auto const one = [](std::uint32_t x, std::uint32_t y, std::uint32_t z) { return encode_half(half(x) * half(y) + half(z)); };
    return halves(one(a, b, c), one(a >> 16, b >> 16, c >> 16));
  });
  check("fma.rn.relu.f16x2 %r0, %r1, %r2, %r3;", true, [](auto a, auto b, auto c) {
    auto const one = [](std::uint32_t x, std::uint32_t y, std::uint32_t z) {
      std::uint32_t const r = encode_half(half(x) * half(y) + half(z));
      return half_nan(r) ? 0x7FFFu : (r & 0x8000u) != 0 ? 0u : r;
    };
    return halves(one(a, b, c), one(a >> 16, b >> 16, c >> 16));
  });
  check("max.f16x2 %r0, %r1, %r2;", true, [](auto a, auto b, auto) {
    auto const one = [](std::uint32_t x, std::uint32_t y) -> std::uint32_t {
      x &= 0xFFFFu;
      y &= 0xFFFFu;
      if (half_nan(x) || half_nan(y)) return half_nan(x) ? (half_nan(y) ? 0x7FFFu : y) : x;
      if (half(x) == half(y)) return x & y;
      return half(x) > half(y) ? x : y;
    };
    return halves(one(a, b), one(a >> 16, b >> 16));
  });
  check("cvt.rn.f16x2.f32 %r0, %r1, %r2;", false, [](auto a, auto b, auto) {
    return halves(encode_half(static_cast<double>(number(b))), encode_half(static_cast<double>(number(a))));
  });
  check("{ .reg .b16 l, h; mov.b32 {l, h}, %r1; cvt.f32.f16 %r0, h; }", true,
        [](auto a, auto, auto) { return canonical(static_cast<float>(half(a >> 16))); });
}

TEST(Instructions, Codes) {
  check("cvt.rn.satfinite.e4m3x2.f32 %rs0, %r1, %r2; cvt.u32.u16 %r0, %rs0;", false, [](auto a, auto b, auto) {
    auto const one = [](std::uint32_t x) -> std::uint32_t {
      double const value = static_cast<double>(number(x));
      if (value != value) return 0x7Fu;
      std::uint32_t const magnitude = reference::e4m3().encode(std::min(std::abs(value), 448.0));
      return magnitude | (std::signbit(value) ? 0x80u : 0u);
    };
    return one(b) | (one(a) << 8);
  });
  check("cvt.rn.bf16x2.f32 %r0, %r1, %r2;", false, [](auto a, auto b, auto) {
    auto const one = [](std::uint32_t x) {
      return number(x) == number(x) ? reference::bf16().encode(static_cast<double>(number(x))) : 0x7FFFu;
    };
    return halves(one(b), one(a));
  });
}

TEST(Instructions, Bits) {
  check("prmt.b32 %r0, %r1, %r2, %r3;", false, [](auto a, auto b, auto c) {
    std::uint8_t bytes[8];
    std::memcpy(bytes, &a, 4);
    std::memcpy(bytes + 4, &b, 4);
    std::uint32_t r = 0;
    for (int n = 0; n < 4; ++n) {
      std::uint32_t const selector = (c >> (4 * n)) & 15u;
      std::uint32_t const byte = bytes[selector & 7u];
      r |= ((selector & 8u) != 0 ? (byte >= 128 ? 255u : 0u) : byte) << (8 * n);
    }
    return r;
  });
  check("bfind.shiftamt.u32 %r0, %r1;", false,
        [](auto a, auto, auto) { return a == 0 ? ~0u : static_cast<std::uint32_t>(std::countl_zero(a)); });
  check("bfi.b32 %r0, %r1, %r2, 5, 9;", false, [](auto a, auto b, auto) { return (b & ~(0x1FFu << 5)) | ((a & 0x1FFu) << 5); });
  check("and.b32 %r4, %r2, 63; shr.s32 %r0, %r1, %r4;", false,
        [](auto a, auto b, auto) { return static_cast<std::uint32_t>(static_cast<std::int32_t>(a) >> std::min(b & 63u, 31u)); });
}

/// The FP8 product against the measured arithmetic, on every instruction set of this machine's build.
TEST(Matrix, Fp8AsTheTensorCore) {
  constexpr int kColumns = 136;
  std::mt19937 random(7);
  for (bool const f16 : {false, true}) {
    std::vector<std::uint8_t> a(kWarpRows * 64), b(kColumns * 64);
    for (auto* codes : {&a, &b}) {
      for (std::uint8_t& code : *codes) {
        // FP16 sums must not overflow.
        do code = static_cast<std::uint8_t>(f16 ? (random() & 0x80u) | (random() % 0x50u) : random());
        while ((code & 0x7Fu) == 0x7Fu);
      }
    }
    auto const values = [](std::vector<std::uint8_t> const& codes) {
      reference::Matrix m(static_cast<std::int64_t>(codes.size()) / 64, 64);
      m.data.clear();
      for (std::uint8_t const code : codes) m.data.push_back(reference::e4m3().decode(code & 0x7Fu) * (code >= 128 ? -1 : 1));
      return reference::split_e4m3(m);
    };
    auto const sa = values(a), sb = values(b);
    auto const step = [](std::vector<std::uint8_t> const& codes, std::size_t first) {
      std::vector<std::uint8_t> part;
      for (std::size_t row = 0; row * 64 < codes.size(); ++row) {
        auto const begin = codes.begin() + static_cast<std::ptrdiff_t>(row * 64 + first);
        part.insert(part.end(), begin, begin + 32);
      }
      return part;
    };
    for (device::cpu::Isa const isa : device::cpu::available_isas()) {
      MatrixKernels const kernels = matrix_kernels(isa);
      std::vector<float> d(kWarpRows * kColumns);
      for (std::size_t const first : {0u, 32u}) kernels.e4m3_exact(step(a, first).data(), step(b, first).data(), kColumns, f16, d.data());
      for (int i = 0; i < kWarpRows; ++i) {
        for (int c = 0; c < kColumns; ++c) {
          double const expected = reference::sm90_dot(sa, i, sb, c, f16 ? reference::Accumulator::fp16 : reference::Accumulator::fp32);
          ASSERT_EQ(static_cast<double>(d[static_cast<std::size_t>(i * kColumns + c)]), expected) << i << ", " << c;
        }
      }
    }
  }
}

TEST(Instructions, OfThePreparationKernels) {
  check("rcp.rn.f32 %r0, %r1;", false, [](auto a, auto, auto) {
    float const x = 1.0f / number(a);
    return x == x ? bits(x) : 0x7FFFFFFFu;
  });
  check("sqrt.rn.f32 %r0, %r1;", false, [](auto a, auto, auto) {
    float const x = std::sqrt(number(a));
    return x == x ? bits(x) : 0x7FFFFFFFu;
  });
  check("copysign.f32 %r0, %r1, %r2;", false, [](auto a, auto b, auto) { return bits(std::copysign(number(b), number(a))); });
  check("dp4a.s32.s32 %r0, %r1, %r2, %r3;", false, [](auto a, auto b, auto c) {
    for (int n = 0; n < 4; ++n) {
      c += static_cast<std::uint32_t>(static_cast<std::int8_t>(a >> (8 * n)) * static_cast<std::int8_t>(b >> (8 * n)));
    }
    return c;
  });
  check("{ .reg .b16 h; cvt.u16.u32 h, %r1; cvt.rn.f16x2.e4m3x2 %r0, h; }", false, [](auto a, auto, auto) {
    std::uint32_t result = 0;
    for (int n = 0; n < 2; ++n) {
      auto const code = static_cast<std::uint8_t>(a >> (8 * n));
      std::uint32_t const half = (code & 0x7F) == 0x7F ? 0x7FFFu : core::fp16_encode(core::e4m3_decode(code));
      result |= half << (16 * n);
    }
    return result;
  });
  check("{ .reg .b16 h; cvt.rn.bf16.f32 h, %r1; cvt.f32.bf16 %r0, h; }", false, [](auto a, auto, auto) {
    bool const nan = (a & 0x7FFFFFFFu) > 0x7F800000u;
    return nan ? 0x7FFF0000u : static_cast<std::uint32_t>(core::bf16_encode(number(a))) << 16;
  });
}

}  // namespace
}  // namespace vcattn::emulator
