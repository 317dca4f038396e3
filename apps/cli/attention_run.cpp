#include "attention_run.hpp"

#include <algorithm>
#include <chrono>

namespace vcattn::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned char kNanByte = 0xFF;  // as every byte of an element: a NaN in FP32, FP16 and BF16

/// Of all elements, from the first to the last one. Strides of the program's tensors are positive.
template <typename View>
std::size_t bytes_of(View const& tensor) {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.shape[i] == 0) return 0;
    last += (tensor.shape[i] - 1) * tensor.stride[i];
  }
  return static_cast<std::size_t>((last + 1) * dtype_bytes(tensor.dtype));
}

std::span<std::byte> span_of(CudaBuffer const& buffer) { return {static_cast<std::byte*>(buffer.data()), buffer.size()}; }

CudaBuffer copy_on_gpu(void const* host, std::size_t bytes) {
  CudaBuffer buffer(bytes);
  if (bytes > 0) buffer.upload(host, bytes);
  return buffer;
}

}  // namespace

Support run_support(Problem const& problem, Options const& options, Devices devices) {
  if (devices.preparation == Device::cpu) return supports(problem, options, devices.attention);
  Support answer = supports_call(problem, options, devices.preparation);
  if (!answer.ok && supports(problem, options, devices.attention).ok) answer.reason += "; --prepare-on cpu prepares on the CPU";
  return answer;
}

AttentionRun::AttentionRun(Problem const& problem, Options const& options, Devices devices, MutableTensorView const& o,
                           std::span<float> lse)
    : problem_(problem),
      options_(options),
      devices_(devices),
      call_{devices.preparation, nullptr, {}},
      host_o_(static_cast<std::byte*>(o.data), bytes_of(o)),
      host_lse_(lse),
      o_(o),
      lse_(lse) {
  if (devices.attention == Device::cpu) return;
  gpu_.emplace(host_o_.size(), host_lse_.size_bytes());
  o_.data = gpu_->o.data();
  if (!lse.empty()) lse_ = {static_cast<float*>(gpu_->lse.data()), lse.size()};
  load_cuda_kernels();
  if (devices.preparation == Device::cuda) move_inputs_to_gpu();
}

double AttentionRun::prepare(std::int64_t calls) {
  std::span<std::byte> storage;
  if (devices_.preparation == Device::cuda) {
    if (!gpu_->storage) gpu_->storage.emplace(prepared_size_bytes(problem_, options_));
    storage = span_of(*gpu_->storage);
  }
  double const seconds = timed(devices_.preparation, calls, [&] { prepared_ = vcattn::prepare(problem_, options_, storage, call_); });
  if (devices_.attention != devices_.preparation) prepared_ = to_cuda(prepared_);
  return seconds;
}

double AttentionRun::attention(std::int64_t calls) {
  fill_with_nan();
  return timed(devices_.attention, calls, [&] { vcattn::attention(prepared_, o_, lse_); });
}

double AttentionRun::attend(std::int64_t calls) {
  fill_with_nan();
  return timed(devices_.attention, calls, [&] { vcattn::attend(problem_, options_, o_, lse_, call_); });
}

void AttentionRun::fetch() {
  if (!gpu_) return;
  gpu_->o.download(host_o_.data(), host_o_.size());
  gpu_->lse.download(host_lse_.data(), host_lse_.size_bytes());
}

void AttentionRun::move_inputs_to_gpu() {
  problem_.q = uploaded(problem_.q);
  problem_.k = uploaded(problem_.k);
  problem_.v = uploaded(problem_.v);
  if (auto const permutation = problem_.permutation; !permutation.empty()) {
    gpu_->inputs.push_back(copy_on_gpu(permutation.data(), permutation.size_bytes()));
    problem_.permutation = {static_cast<std::int32_t const*>(gpu_->inputs.back().data()), permutation.size()};
  }
  gpu_->workspace.emplace(call_workspace_size_bytes(problem_, options_, Device::cuda));
  call_.workspace = span_of(*gpu_->workspace);
}

TensorView AttentionRun::uploaded(TensorView const& tensor) {
  gpu_->inputs.push_back(copy_on_gpu(tensor.data, bytes_of(tensor)));
  TensorView view = tensor;
  view.data = gpu_->inputs.back().data();
  return view;
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

template <typename Body>
double AttentionRun::timed(Device device, std::int64_t calls, Body const& body) {
  auto const start = Clock::now();
  if (device == Device::cuda) gpu_->timer.start();
  for (std::int64_t i = 0; i < calls; ++i) body();
  double const seconds =
      device == Device::cuda ? gpu_->timer.stop_ms() * 1e-3 : std::chrono::duration<double>(Clock::now() - start).count();
  return seconds / static_cast<double>(calls);
}

}  // namespace vcattn::cli
