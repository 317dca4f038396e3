// The functions of the CUDA runtime that the project calls, for the emulated device. Work is done when it is put on a stream, or recorded
// where the stream is captured. Device memory that does not exist, and everything that a kernel does wrong, is thrown as a Fault.

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "emulator/device/device.hpp"
#include "emulator/device/kernel_index.hpp"
#include "emulator/fault.hpp"
#include "emulator/tensor_map.hpp"

namespace vcattn::emulator {
namespace {

constexpr std::size_t kMaxShared = 232448;     // of a CTA, with permission
constexpr std::size_t kDefaultShared = 49152;  // without
constexpr std::size_t kReservedShared = 1024;  // of every CTA
constexpr std::size_t kSharedOfSm = 233472;
constexpr int kThreadsOfSm = 2048;
constexpr int kCtasOfSm = 32;

/// A kernel as the host code knows it.
struct RegisteredKernel {
  std::string symbol;
  std::size_t max_dynamic_shared = kDefaultShared;
};

/// By the address of the host's function. Filled before main().
std::map<void const*, RegisteredKernel>& registered_kernels() {
  static std::map<void const*, RegisteredKernel> kernels;
  return kernels;
}

RegisteredKernel* registered(void const* function) {
  auto const found = registered_kernels().find(function);
  return found == registered_kernels().end() ? nullptr : &found->second;
}

cudaError_t last_error = cudaSuccess;
cudaError_t failed(cudaError_t error) { return last_error = error; }

/// What a graph does, and the memory that it owns.
struct Recording {
  struct Node {
    cudaGraphNodeType type;
    std::function<void()> work;
  };
  std::vector<Node> nodes;
  std::vector<std::shared_ptr<void>> memory;
};

/// vcattn::attention_kernel of vcattn::attention_kernel<...>(...).
std::string plain_kernel_name(std::string const& symbol) {
  std::string name = demangled(symbol);
  constexpr std::string_view kUnnamed = "(anonymous namespace)::";
  if (auto const at = name.find(kUnnamed); at != std::string::npos) name.erase(at, kUnnamed.size());
  std::string const without_arguments = name.substr(0, name.find_first_of("<("));
  auto const space = without_arguments.rfind(' ');
  return space == std::string::npos ? without_arguments : without_arguments.substr(space + 1);
}

/// What emulator/attention_kernels.cu says of dynamic shared memory; the first range is all of it.
std::vector<NamedRange> shared_ranges(Module const& module, std::size_t shared_bytes) {
  struct Range {
    std::uint32_t offset, bytes;
    char name[24];
  };
  auto const found = module.globals.find("vcattn_shared_ranges");
  if (found == module.globals.end()) return {};
  std::vector<std::uint8_t> const& bytes = found->second.bytes;
  std::vector<NamedRange> ranges;
  for (std::size_t at = 0; at + sizeof(Range) <= bytes.size(); at += sizeof(Range)) {
    Range range;
    std::memcpy(&range, bytes.data() + at, sizeof range);
    if (at == 0 && range.bytes != shared_bytes) return {};
    if (at != 0) ranges.push_back({range.offset, range.bytes, range.name});
  }
  return ranges;
}

void run(RegisteredKernel const& registered_kernel, dim3 grid, dim3 block, std::size_t shared_bytes,
         std::vector<std::uint8_t> const& parameters) {
  EmulatedDevice& d = device();
  auto const found = find_kernel(registered_kernel.symbol, d.ptx_folders);
  std::string const name = plain_kernel_name(registered_kernel.symbol);
  Trace const trace = name.find(d.traced_kernel) != std::string::npos ? d.trace : Trace{};
  LaunchConfig const config{{grid.x, grid.y, grid.z},
                            {block.x, block.y, block.z},
                            static_cast<std::uint32_t>(shared_bytes),
                            d.seed++,
                            d.arithmetic,
                            shared_ranges(found.module, shared_bytes),
                            d.count_forms,
                            d.time_products,
                            trace};
  Counters const counters = launch(found.module, found.symbol, config, parameters, d.memory);
  d.counters += counters;
  d.by_kernel[name] += counters;
}

/// The bytes of the arguments as the kernel lays them out.
std::vector<std::uint8_t> packed(Kernel const& kernel, void** arguments) {
  std::vector<std::uint8_t> bytes(kernel.parameter_bytes);
  for (std::size_t i = 0; i < kernel.parameters.size(); ++i) {
    std::memcpy(bytes.data() + kernel.parameters[i].offset, arguments[i], kernel.parameters[i].bytes);
  }
  return bytes;
}

}  // namespace

EmulatedDevice& device() {
  static EmulatedDevice the_device = [] {
    EmulatedDevice d;
    d.ptx_folders = {VCATTN_PTX_FOLDER};
    return d;
  }();
  return the_device;
}

}  // namespace vcattn::emulator

// The runtime's own types.
using vcattn::emulator::device;
using vcattn::emulator::Recording;

struct CUstream_st {
  std::shared_ptr<Recording> capture;  // nullptr: work is done at once
};
struct CUevent_st {
  std::chrono::steady_clock::time_point time;
};
struct CUgraph_st {
  std::shared_ptr<Recording> recording;
};
struct CUgraphExec_st {
  std::shared_ptr<Recording> recording;
};

namespace vcattn::emulator {
namespace {

template <typename Work>
cudaError_t enqueue(cudaStream_t stream, cudaGraphNodeType type, Work work) {
  if (stream != nullptr && stream->capture != nullptr) {
    stream->capture->nodes.push_back({type, std::move(work)});
  } else {
    work();
  }
  return cudaSuccess;
}

bool is_captured(cudaStream_t stream) { return stream != nullptr && stream->capture != nullptr; }

std::shared_ptr<void> allocate(std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;
  static int number = 0;
  void* const memory = std::aligned_alloc(kAlignment, (std::max<std::size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment);
  if (memory == nullptr) return nullptr;
  device().memory.add(memory, bytes, "memory " + std::to_string(++number), Access::read_write, false);
  return {memory, [](void* p) {
            device().memory.remove(p);
            std::free(p);
          }};
}
/// Memory that the program owns, by its address.
std::map<void*, std::shared_ptr<void>>& allocations() {
  static std::map<void*, std::shared_ptr<void>> all;
  return all;
}

void copy(void* to, void const* from, std::size_t bytes, cudaMemcpyKind kind) {
  GlobalMemory& memory = device().memory;
  if (bytes == 0) return;
  switch (kind) {
    case cudaMemcpyHostToDevice:
      memory.mark_written(to, bytes);
      break;
    case cudaMemcpyDeviceToHost:
      memory.check(from, bytes);
      break;
    case cudaMemcpyDeviceToDevice:
      return memory.copy(to, from, bytes);
    case cudaMemcpyHostToHost:
    case cudaMemcpyDefault:
      throw Fault("cudaMemcpy of this kind is not known to the emulator");
  }
  std::memcpy(to, from, bytes);
}

void set(void* to, int value, std::size_t bytes) {
  if (bytes == 0) return;
  device().memory.mark_written(to, bytes);
  std::memset(to, value, bytes);
}

cudaError_t launch_kernel(RegisteredKernel const* kernel, dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
                          void** arguments) {
  if (kernel == nullptr) return failed(cudaErrorInvalidDeviceFunction);
  if (shared_bytes > kernel->max_dynamic_shared) return failed(cudaErrorInvalidValue);
  auto const found = find_kernel(kernel->symbol, device().ptx_folders);
  auto const parameters = packed(found.module.kernels.at(found.symbol), arguments);
  return enqueue(stream, cudaGraphNodeTypeKernel, [=] { run(*kernel, grid, block, shared_bytes, parameters); });
}

CUresult encode_tensor_map(CUtensorMap* result, CUtensorMapDataType type, cuuint32_t rank, void* base, cuuint64_t const* sizes,
                           cuuint64_t const* strides, cuuint32_t const* box, cuuint32_t const* steps, CUtensorMapInterleave interleave,
                           CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  bool const bytes = type == CU_TENSOR_MAP_DATA_TYPE_UINT8;
  if ((!bytes && type != CU_TENSOR_MAP_DATA_TYPE_FLOAT16) || rank != 2 || steps[0] != 1 || steps[1] != 1 ||
      interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) {
    throw Fault("this kind of tensor map is not known to the emulator");
  }
  TensorMap map;
  map.base = reinterpret_cast<std::uint64_t>(base);
  map.rows = static_cast<std::int64_t>(sizes[1]);
  map.columns = static_cast<std::int64_t>(sizes[0]);
  map.row_bytes = static_cast<std::int64_t>(strides[0]);
  map.box_rows = box[1];
  map.box_columns = box[0];
  map.element_bytes = bytes ? 1 : 2;
  map.swizzle = swizzle == CU_TENSOR_MAP_SWIZZLE_128B  ? Swizzle::bytes_128
                : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? Swizzle::bytes_64
                : swizzle == CU_TENSOR_MAP_SWIZZLE_32B ? Swizzle::bytes_32
                                                       : Swizzle::none;
  check_tensor_map(map);
  static_assert(sizeof *result == sizeof map);
  std::memcpy(static_cast<void*>(result), &map, sizeof map);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace vcattn::emulator

using namespace vcattn::emulator;  // NOLINT: what follows belongs to no namespace

extern "C" {

// Registration, which nvcc's code does before main().

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void**, char const* function, char*, char const* symbol, int, uint3*, uint3*, dim3*, dim3*, int*) {
  registered_kernels()[function] = {symbol};
}
void __cudaRegisterVar(void**, char*, char*, char const*, int, std::size_t, int, int) {}

// Launches.

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, void const* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(registered(function));
  return *kernel == nullptr ? failed(cudaErrorInvalidDeviceFunction) : cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared_bytes,
                               cudaStream_t stream) {
  return launch_kernel(reinterpret_cast<RegisteredKernel const*>(kernel), grid, block, shared_bytes, stream, arguments);
}
cudaError_t cudaLaunchKernelExC(cudaLaunchConfig_t const* config, void const* function, void** arguments) {
  if (config->numAttrs != 0) throw Fault("launch attributes are not known to the emulator");
  return launch_kernel(registered(function), config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream, arguments);
}
/// Of <<< >>>, which the project does not use.
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void*) { return failed(cudaErrorNotSupported); }

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void const* function) {
  if (registered(function) == nullptr) return failed(cudaErrorInvalidDeviceFunction);
  *attributes = {};  // its PTX is looked for when it is launched
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(void const* function, cudaFuncAttribute attribute, int value) {
  RegisteredKernel* const kernel = registered(function);
  if (kernel == nullptr) return failed(cudaErrorInvalidDeviceFunction);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return failed(cudaErrorNotSupported);
  if (value < 0 || static_cast<std::size_t>(value) > kMaxShared) return failed(cudaErrorInvalidValue);
  kernel->max_dynamic_shared = static_cast<std::size_t>(value);
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* ctas, void const* function, int threads, std::size_t shared_bytes,
                                                                   unsigned) {
  if (registered(function) == nullptr) return failed(cudaErrorInvalidDeviceFunction);
  auto const by_shared = static_cast<int>(kSharedOfSm / (shared_bytes + kReservedShared));
  *ctas = std::min({kThreadsOfSm / threads, by_shared, kCtasOfSm});  // registers are not known
  return cudaSuccess;
}

// Devices and errors.

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
char const* cudaGetErrorString(cudaError_t error) { return error == cudaSuccess ? "no error" : "refused by the emulated device"; }
char const* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidDeviceFunction:
      return "cudaErrorInvalidDeviceFunction";
    case cudaErrorNotSupported:
      return "cudaErrorNotSupported";
    default:
      return "another cudaError";
  }
}
cudaError_t cudaGetDevice(int* number) {
  *number = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = device().multiprocessors;
      return cudaSuccess;
    case cudaDevAttrMemoryPoolsSupported:
      *value = 1;
      return cudaSuccess;
    default:
      return failed(cudaErrorNotSupported);
  }
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "emulator");
  properties->major = 9;
  properties->multiProcessorCount = device().multiprocessors;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(char const* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  bool const known = std::string(name) == "cuTensorMapEncodeTiled";
  *function = known ? reinterpret_cast<void*>(&encode_tensor_map) : nullptr;
  *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

// Memory.

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  auto const owned = allocate(bytes);
  if (owned == nullptr) return failed(cudaErrorMemoryAllocation);
  *memory = owned.get();
  allocations()[owned.get()] = owned;
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  if (memory != nullptr && allocations().erase(memory) == 0) return failed(cudaErrorInvalidValue);
  return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, cudaMemPoolProps const*) {
  static int the_pool;
  *pool = reinterpret_cast<cudaMemPool_t>(&the_pool);
  return cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t) { return cudaSuccess; }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMallocFromPoolAsync(void** memory, std::size_t bytes, cudaMemPool_t, cudaStream_t stream) {
  if (!is_captured(stream)) return cudaMalloc(memory, bytes);
  auto const owned = allocate(bytes);
  if (owned == nullptr) return failed(cudaErrorMemoryAllocation);
  *memory = owned.get();
  stream->capture->memory.push_back(owned);
  return cudaSuccess;
}
/// Memory of a graph lives as long as the graph.
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) { return is_captured(stream) ? cudaSuccess : cudaFree(memory); }

cudaError_t cudaMemcpy(void* to, void const* from, std::size_t bytes, cudaMemcpyKind kind) {
  copy(to, from, bytes, kind);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, void const* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return enqueue(stream, cudaGraphNodeTypeMemcpy, [=] { copy(to, from, bytes, kind); });
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  set(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return enqueue(stream, cudaGraphNodeTypeMemset, [=] { set(to, value, bytes); });
}

// Streams, events, graphs.

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = new CUstream_st{};
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return is_captured(stream) ? failed(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream == nullptr || is_captured(stream)) return failed(cudaErrorStreamCaptureUnsupported);
  stream->capture = std::make_shared<Recording>();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (!is_captured(stream)) return failed(cudaErrorIllegalState);
  *graph = new CUgraph_st{std::exchange(stream->capture, nullptr)};
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new CUgraphExec_st{graph->recording};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t) {
  for (auto const& node : executable->recording->nodes) node.work();
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st{};
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->time = std::chrono::steady_clock::now();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t stop) {
  *ms = std::chrono::duration<float, std::milli>(stop->time - start->time).count();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

}  // extern "C"
