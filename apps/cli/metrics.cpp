#include "metrics.hpp"

#include <cmath>
#include <limits>

namespace vcattn::cli {

void ErrorSums::add(float output, float reference) {
  double const o = output, ref = reference, difference = o - ref;
  error_squared_ += difference * difference;
  reference_squared_ += ref * ref;
  output_squared_ += o * o;
  dot_ += o * ref;
  if (!(std::abs(difference) <= max_abs_)) max_abs_ = std::isnan(max_abs_) ? max_abs_ : std::abs(difference);  // NaN sticks
}

void ErrorSums::add(ErrorSums const& other) {
  error_squared_ += other.error_squared_;
  reference_squared_ += other.reference_squared_;
  output_squared_ += other.output_squared_;
  dot_ += other.dot_;
  if (!(other.max_abs_ <= max_abs_)) max_abs_ = std::isnan(max_abs_) ? max_abs_ : other.max_abs_;
}

double ErrorSums::rel_l2() const {
  return reference_squared_ == 0 ? std::sqrt(error_squared_) : std::sqrt(error_squared_ / reference_squared_);
}

double ErrorSums::snr_db() const {
  if (error_squared_ == 0) return std::numeric_limits<double>::infinity();
  if (reference_squared_ == 0) return std::numeric_limits<double>::quiet_NaN();
  return 10.0 * std::log10(reference_squared_ / error_squared_);
}

double ErrorSums::cosine() const {
  if (reference_squared_ == 0 && output_squared_ == 0) return 1.0;
  if (reference_squared_ == 0 || output_squared_ == 0) return 0.0;
  return dot_ / (std::sqrt(reference_squared_) * std::sqrt(output_squared_));
}

std::vector<ErrorSums> error_per_head(std::span<float const> output, std::span<float const> reference, std::int64_t batch,
                                      std::int64_t seqlen, std::int64_t num_heads, std::int64_t head_dim) {
  std::vector<ErrorSums> sums(static_cast<std::size_t>(batch * num_heads));
  std::size_t index = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t s = 0; s < seqlen; ++s) {
      for (std::int64_t h = 0; h < num_heads; ++h) {
        ErrorSums& head = sums[static_cast<std::size_t>(b * num_heads + h)];
        for (std::int64_t d = 0; d < head_dim; ++d, ++index) head.add(output[index], reference[index]);
      }
    }
  }
  return sums;
}

ErrorSums pooled(std::span<ErrorSums const> parts) {
  ErrorSums total;
  for (ErrorSums const& part : parts) total.add(part);
  return total;
}

}  // namespace vcattn::cli
