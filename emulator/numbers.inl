// FP16, as vector code: included inside the namespace of an instruction set.

inline constexpr std::uint32_t kNan32 = 0x7FFFFFFFu;
inline constexpr std::uint32_t kNan16 = 0x7FFFu;

[[gnu::always_inline]] inline std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }
[[gnu::always_inline]] inline float number(std::uint32_t x) { return std::bit_cast<float>(x); }

[[gnu::always_inline]] inline float from_half(std::uint32_t h) {
  std::uint32_t const magnitude = h & 0x7FFFu;
  std::uint32_t const normal = (magnitude << 13) + ((magnitude >= 0x7C00u ? 224u : 112u) << 23);
  std::uint32_t const subnormal = bits(static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f);
  return number((magnitude < 0x400u ? subnormal : normal) | ((h & 0x8000u) << 16));
}
/// Nearest even.
[[gnu::always_inline]] inline std::uint32_t to_half(float x) {
  std::uint32_t const magnitude = bits(x) & 0x7FFFFFFFu;
  std::uint32_t const normal = (magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  std::uint32_t const subnormal = bits(number(magnitude) + 0.5f) - bits(0.5f);
  std::uint32_t const finite = magnitude < 0x38800000u ? subnormal : normal;
  std::uint32_t const sign = (bits(x) >> 16) & 0x8000u;
  return magnitude > 0x7F800000u ? kNan16 : sign | (magnitude >= 0x47800000u ? 0x7C00u : finite);
}
