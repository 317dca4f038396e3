#include "emulator/proof/operands.hpp"

#include <bit>
#include <cmath>
#include <iterator>

namespace vcattn::emulator::proof {

namespace {

template <typename T, std::size_t kCount>
T any_of(T const (&values)[kCount], Numbers& numbers) {
  return values[numbers.below(static_cast<std::uint32_t>(kCount))];
}

// Zeros, subnormals, infinities, NaN, bounds of FP32, FP16, E4M3 and the integers.
constexpr std::uint32_t kFloats[] = {
    0x00000000u, 0x80000000u, 0x7F800000u, 0xFF800000u, 0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFFFFFFFFu, 0x7FBFFFFFu, 0x00000001u,
    0x80000001u, 0x007FFFFFu, 0x807FFFFFu, 0x00800000u, 0x80800000u, 0x7F7FFFFFu, 0xFF7FFFFFu, 0x3F800000u, 0xBF800000u, 0x3F7FFFFFu,
    0x43E00000u, 0x43E80000u, 0xC3E80001u, 0x43E7FFFFu, 0x477FE000u, 0x477FF000u, 0x477FEFFFu, 0xC77FF000u, 0x33800000u, 0x33000000u,
    0x33000001u, 0x33C00000u, 0x38800000u, 0x387FE000u, 0x3C800000u, 0x3B000000u, 0x3A800000u, 0x3A800001u, 0x4F000000u, 0xCF000000u,
    0x4EFFFFFFu, 0x4F7FFFFFu, 0xC2FC0000u, 0xC3160000u, 0x42FFFFFFu, 0x43000000u, 0x3F000000u, 0xBF000000u};
constexpr std::uint16_t kHalves[] = {0x0000u, 0x8000u, 0x7C00u, 0xFC00u, 0x7E00u, 0xFE01u, 0x7C01u, 0x7FFFu, 0x0001u, 0x8001u,
                                     0x03FFu, 0x83FFu, 0x0400u, 0x8400u, 0x7BFFu, 0xFBFFu, 0x3C00u, 0xBC00u, 0x3BFFu, 0x3800u};
constexpr std::uint16_t kBrains[] = {0x0000u, 0x8000u, 0x7F80u, 0xFF80u, 0x7FC0u, 0xFF81u, 0x7FFFu, 0x0001u, 0x8001u,
                                     0x007Fu, 0x0080u, 0x8080u, 0x7F7Fu, 0xFF7Fu, 0x3F80u, 0xBF80u, 0x3F7Fu, 0x3F00u};
constexpr std::uint32_t kWords[] = {0u,      1u,       2u,          31u,         32u,         255u,        0x7FFFu,    0x8000u,
                                    0xFFFFu, 0x10000u, 0x7FFFFFFFu, 0x80000000u, 0x80000001u, 0xFFFFFFFEu, 0xFFFFFFFFu};
constexpr std::uint64_t kDoubles[] = {0,
                                      std::uint64_t{1} << 63,
                                      0x7FF0000000000000u,
                                      0xFFF0000000000000u,
                                      0x7FF8000000000000u,
                                      0xFFF0000000000001u,
                                      0x0000000000000001u,
                                      0x000FFFFFFFFFFFFFu,
                                      0x0010000000000000u,
                                      0x7FEFFFFFFFFFFFFFu,
                                      0x3FF0000000000000u,
                                      0xBFF0000000000000u,
                                      0x47EFFFFFE0000000u,
                                      0x47EFFFFFF0000000u,
                                      0x3690000000000000u,
                                      0x36A0000000000000u};

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }
float number(std::uint32_t x) { return std::bit_cast<float>(x); }

/// Random bits under `mask`, and one of `fields` fields from `first` on above `shift`. One draw a statement: the order must not be the
/// compiler's choice.
std::uint32_t with_field(Numbers& numbers, std::uint32_t mask, std::uint32_t first, std::uint32_t fields, int shift) {
  std::uint32_t const rest = numbers.word() & mask;
  return rest | ((first + numbers.below(fields)) << shift);
}
std::uint32_t with_exponent(Numbers& numbers, std::uint32_t first, std::uint32_t exponents) {
  return with_field(numbers, 0x807FFFFFu, first, exponents, 23);
}
std::uint32_t half_with_exponent(Numbers& numbers, std::uint32_t first, std::uint32_t exponents) {
  return with_field(numbers, 0x83FFu, first, exponents, 10);
}

std::uint32_t any_float(Numbers& numbers) {
  switch (numbers.below(8)) {
    case 0:
      return any_of(kFloats, numbers);
    case 1:
      return numbers.word();
    case 2: {  // halfway between numbers of FP16, BF16 or E4M3, or next to it
      std::uint32_t x = with_exponent(numbers, 100, 45);
      x &= any_of({0xFFFFE000u, 0xFFFF0000u, 0xFFF00000u}, numbers);
      return x + any_of({0x1000u, 0x8000u, 0x80000u, 0xFFFu, 0x80001u}, numbers);
    }
    case 3:  // integers and halves
      return bits(static_cast<float>(static_cast<std::int32_t>(numbers.word()) >> numbers.below(31)) * 0.5f);
    case 4:
      return with_exponent(numbers, 0, 255);
    default:
      return with_exponent(numbers, 117, 20);
  }
}

std::uint32_t any_half(Numbers& numbers) {
  switch (numbers.below(4)) {
    case 0:
      return any_of(kHalves, numbers);
    case 1:
      return numbers.word() & 0xFFFFu;
    default:
      return half_with_exponent(numbers, 10, 10);
  }
}

std::uint32_t any_brain(Numbers& numbers, bool moderate) {
  if (!moderate && numbers.one_in(3)) return any_of(kBrains, numbers);
  if (!moderate && numbers.one_in(2)) return numbers.word() & 0xFFFFu;
  return with_field(numbers, 0x807Fu, 120, 14, 7);
}

std::uint64_t any_word(Numbers& numbers) {
  switch (numbers.below(4)) {
    case 0:
      return any_of(kWords, numbers);
    case 1:
      return numbers.word() >> numbers.below(32);
    case 2:
      return static_cast<std::uint32_t>(static_cast<std::int32_t>(numbers.word()) >> numbers.below(32));
    default:
      return numbers.word();
  }
}

std::uint64_t any_wide(Numbers& numbers) {
  switch (numbers.below(4)) {
    case 0:
      return static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::int32_t>(any_word(numbers))));
    case 1:
      return numbers.next() >> numbers.below(64);
    case 2:
      return static_cast<std::uint64_t>(static_cast<std::int64_t>(numbers.next()) >> numbers.below(64));
    default:
      return numbers.next();
  }
}

std::uint64_t any_double(Numbers& numbers) {
  switch (numbers.below(6)) {
    case 0:
      return any_of(kDoubles, numbers);
    case 1:
      return numbers.next();
    case 2:  // an FP32 number
      return std::bit_cast<std::uint64_t>(static_cast<double>(number(with_exponent(numbers, 1, 254))));
    default: {
      std::uint64_t const rest = numbers.next() & 0x800FFFFFFFFFFFFFu;
      return rest | ((std::uint64_t{1003} + numbers.below(40)) << 52);
    }
  }
}

std::uint32_t close_to_cancellation(Numbers& numbers, std::vector<std::uint64_t> const& before) {
  if (before.empty() || !numbers.one_in(4)) return any_float(numbers);
  float const a = number(static_cast<std::uint32_t>(before[0]));
  float const product = before.size() == 1 ? a : a * number(static_cast<std::uint32_t>(before[1]));
  if (product != product) return 0x7FC00000u;
  return bits(-product) + numbers.below(3) - 1;
}

}  // namespace

std::uint64_t Numbers::next() {
  state_ += 0x9E3779B97F4A7C15u;
  std::uint64_t x = state_;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

std::uint64_t operand(char kind, Numbers& numbers, std::vector<std::uint64_t> const& before) {
  switch (kind) {
    case 's':
      return numbers.one_in(8) ? numbers.word() : numbers.below(70);
    case 'l':
      return numbers.below(32);
    case 'p':
      return numbers.below(2);
    case 'd':
      return any_wide(numbers);
    case 'h':
      return any_word(numbers) & 0xFFFFu;
    case 'f':
      return any_float(numbers);
    case 'c':
      return close_to_cancellation(numbers, before);
    case 'g':
      return with_exponent(numbers, 115, 24);
    case 'F':
      return any_double(numbers);
    case 'X':
      return any_half(numbers);
    case 'x': {
      std::uint32_t const low = any_half(numbers);
      return low | (any_half(numbers) << 16);
    }
    case 'B':
      return any_brain(numbers, false);
    case 'y':
    case 'Y': {
      std::uint32_t const low = any_brain(numbers, kind == 'Y');
      return low | (any_brain(numbers, kind == 'Y') << 16);
    }
    case 'e':
      return numbers.word() & 0xFFFFu;
    default:
      return any_word(numbers);
  }
}

std::uint8_t e4m3_code(std::uint32_t theme, Numbers& numbers) {
  auto const code = [&](std::uint32_t first_field, std::uint32_t fields) {
    std::uint32_t c = with_field(numbers, 0x87u, first_field, fields, 3);
    if ((c & 0x7Fu) == 0x7Fu) c ^= 1u;
    return static_cast<std::uint8_t>(c);
  };
  switch (theme % kThemes) {
    case 0:
      return code(0, 16);
    case 1:
      return numbers.one_in(2000) ? std::uint8_t{0x7F} : code(0, 16);
    case 2:
      return code(3, 8);
    case 3:
      return code(7, 1);
    case 4:
      return code(0, 3);
    case 5:
      return numbers.below(5) != 0 ? static_cast<std::uint8_t>(numbers.word() & 0x80u) : code(2, 12);
    case 6:
      return code(12, 4);
    case 7:
      return static_cast<std::uint8_t>(numbers.word() & 0x80u);
    default:  // few different products, so that sums cancel
      return static_cast<std::uint8_t>(any_of({0x38u, 0xB8u, 0x3Fu, 0xBFu, 0x01u, 0x81u}, numbers));
  }
}

std::uint16_t half_number(std::uint32_t theme, Numbers& numbers) {
  auto const value = [&](std::uint32_t first, std::uint32_t exponents) {
    return static_cast<std::uint16_t>(half_with_exponent(numbers, first, exponents));
  };
  switch (theme % kThemes) {
    case 0:
      return value(0, 31);
    case 1:
      return numbers.one_in(500) ? any_of(kHalves, numbers) : value(0, 31);
    case 2:
      return value(10, 10);
    case 3:
      return value(15, 1);
    case 4:
      return value(0, 3);
    case 5:
      return numbers.below(5) != 0 ? static_cast<std::uint16_t>(numbers.word() & 0x8000u) : value(4, 24);
    case 6:
      return value(26, 5);
    case 7:
      return static_cast<std::uint16_t>(numbers.word() & 0x8000u);
    default:
      return static_cast<std::uint16_t>(any_of({0x3C00u, 0xBC00u, 0x3FFFu, 0xBFFFu, 0x0001u, 0x8001u}, numbers));
  }
}

std::uint32_t float_sum(std::uint32_t theme, Numbers& numbers) {
  switch (theme % kSumThemes) {
    case 0:
      return 0;
    case 1:
      return numbers.word() & 0x80000000u;
    case 2:
      return with_exponent(numbers, 107, 40);
    case 3:
      return with_exponent(numbers, 1, 253);
    case 4:
      return with_exponent(numbers, 124, 6);
    case 5:
      return numbers.one_in(8) ? any_of(kFloats, numbers) : with_exponent(numbers, 0, 2);
    default:
      return bits(static_cast<float>(static_cast<std::int32_t>(numbers.word()) >> (8 + numbers.below(20))));
  }
}

std::uint32_t half_sums(std::uint32_t theme, Numbers& numbers) {
  auto const one = [&]() -> std::uint32_t {
    switch (theme % kSumThemes) {
      case 0:
        return 0;
      case 1:
        return numbers.word() & 0x8000u;
      case 2:
        return half_with_exponent(numbers, 5, 20);
      case 3:
        return half_with_exponent(numbers, 0, 31);
      case 4:
        return half_with_exponent(numbers, 14, 4);
      case 5:
        return numbers.one_in(8) ? any_of(kHalves, numbers) : numbers.word() & 0x83FFu;
      default:
        return half_with_exponent(numbers, 24, 7);
    }
  };
  std::uint32_t const low = one();
  return low | (one() << 16);
}

}  // namespace vcattn::emulator::proof
