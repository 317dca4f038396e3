#pragma once

// How far an output is from the reference.

#include <cstdint>
#include <span>
#include <vector>

namespace vcattn::cli {

/// Figures over any set of elements; sums in double.
class ErrorSums {
 public:
  void add(float output, float reference);
  void add(ErrorSums const& other);

  /// ||o - ref|| / ||ref||; where ref is all zero, ||o - ref|| itself, so that an exact zero reads 0.
  double rel_l2() const;
  /// 20 log10(||ref|| / ||o - ref||); infinite where o equals ref, NaN where ref is all zero and o is not.
  double snr_db() const;
  /// Cosine of the angle between o and ref; 1 where both are zero, 0 where one is.
  double cosine() const;
  double max_abs() const { return max_abs_; }

 private:
  double error_squared_ = 0, reference_squared_ = 0, output_squared_ = 0, dot_ = 0, max_abs_ = 0;
};

/// Sums per (batch, head) of two contiguous [B, S, H, D] buffers, in the order [B, H].
std::vector<ErrorSums> error_per_head(std::span<float const> output, std::span<float const> reference, std::int64_t batch,
                                      std::int64_t seqlen, std::int64_t num_heads, std::int64_t head_dim);

/// All of them together.
ErrorSums pooled(std::span<ErrorSums const> parts);

}  // namespace vcattn::cli
