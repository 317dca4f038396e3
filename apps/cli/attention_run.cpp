#include "attention_run.hpp"

#include <algorithm>
#include <chrono>

namespace vcattn::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned char kNanByte = 0xFF;  // as every byte of an element: a NaN in FP32, FP16 and BF16

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::span<std::byte> bytes_of(MutableTensorView const& tensor) {
  std::int64_t bytes = dtype_bytes(tensor.dtype);
  for (std::int64_t const extent : tensor.shape) bytes *= extent;
  return {static_cast<std::byte*>(tensor.data), static_cast<std::size_t>(bytes)};
}

}  // namespace

AttentionRun::AttentionRun(Problem const& problem, Options const& options, Device device, MutableTensorView const& o, std::span<float> lse)
    : host_o_(bytes_of(o)), host_lse_(lse), o_(o), lse_(lse) {
  auto const start = Clock::now();
  prepared_ = prepare(problem, options);
  prepare_seconds_ = seconds_since(start);
  if (device == Device::cpu) return;
  prepared_ = to_cuda(prepared_);
  gpu_.emplace(host_o_.size(), host_lse_.size_bytes());
  o_.data = gpu_->o.data();
  if (!lse.empty()) lse_ = {static_cast<float*>(gpu_->lse.data()), lse.size()};
}

double AttentionRun::attend(std::int64_t calls) {
  fill_with_nan();
  return gpu_ ? attend_on_gpu(calls) : attend_on_cpu(calls);
}

void AttentionRun::fetch() {
  if (!gpu_) return;
  gpu_->o.download(host_o_.data(), host_o_.size());
  gpu_->lse.download(host_lse_.data(), host_lse_.size_bytes());
}

void AttentionRun::fill_with_nan() {
  if (gpu_) {
    gpu_->o.fill(kNanByte);
    gpu_->lse.fill(kNanByte);
    return;
  }
  std::ranges::fill(host_o_, std::byte{kNanByte});
  std::ranges::fill(std::as_writable_bytes(host_lse_), std::byte{kNanByte});
}

double AttentionRun::attend_on_cpu(std::int64_t calls) {
  auto const start = Clock::now();
  for (std::int64_t i = 0; i < calls; ++i) attention(prepared_, o_, lse_);
  return seconds_since(start) / static_cast<double>(calls);
}

double AttentionRun::attend_on_gpu(std::int64_t calls) {
  gpu_->timer.start();
  for (std::int64_t i = 0; i < calls; ++i) attention(prepared_, o_, lse_);
  return gpu_->timer.stop_ms() * 1e-3 / static_cast<double>(calls);
}

}  // namespace vcattn::cli
