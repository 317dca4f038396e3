#include "vcattn/info.hpp"

#include <tbb/task_arena.h>

#include <fstream>

#include "device/cpu/isa.hpp"
#include "device/cuda/runtime.hpp"
#include "vcattn/version.hpp"

namespace vcattn {

namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(std::min(line.find(':') + 2, line.size()));
  }
  return "unknown";
}

}  // namespace

RuntimeInfo runtime_info() {
  RuntimeInfo info;
  info.version = VCATTN_VERSION_STRING;
#if defined(__clang__)
  info.compiler = "Clang " __clang_version__;
#else
  info.compiler = "GCC " __VERSION__;
#endif
  info.cpu_model = cpu_model();
  info.isa = device::cpu::isa_name(device::cpu::best_isa());
  for (device::cpu::Isa isa : device::cpu::available_isas()) info.available_isas.emplace_back(device::cpu::isa_name(isa));
  info.num_threads = tbb::this_task_arena::max_concurrency();
  info.cuda_built = VCATTN_HAVE_CUDA != 0;
  try {
    info.cuda_note = device::cuda::unavailable_reason();
    info.cuda_usable = info.cuda_note.empty();
    if (info.cuda_usable) info.cuda_note = device::cuda::device_description();
  } catch (Error const& error) {
    info.cuda_note = error.what();
  }
  return info;
}

}  // namespace vcattn
