#include <cuda.h>
#include <dlfcn.h>

#include <cstring>
#include <stdexcept>

#include "emulator/proof/machine.hpp"

namespace vcattn::emulator::proof {

/// Functions of libcuda, opened at run time: a machine that builds this needs no driver.
struct Card::Driver {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  CUdevice device = 0;
  CUcontext context = nullptr;

  template <typename Function>
  Function* find(char const* name) const {
    void* const symbol = library == nullptr ? nullptr : dlsym(library, name);
    if (symbol == nullptr) throw std::runtime_error(std::string("no CUDA driver with ") + name);
    return reinterpret_cast<Function*>(symbol);
  }
  void check(CUresult result, char const* what) const {
    if (result == CUDA_SUCCESS) return;
    char const* text = nullptr;
    (void)find<decltype(cuGetErrorString)>("cuGetErrorString")(result, &text);
    throw std::runtime_error(std::string(what) + ": " + (text == nullptr ? "unknown error" : text));
  }
};

// The symbol with the version that cuda.h gives the function.
#define VCATTN_NAME_OF(function) #function
#define VCATTN_DRIVER(function, ...) \
  driver_->check(driver_->find<decltype(function)>(VCATTN_NAME_OF(function))(__VA_ARGS__), VCATTN_NAME_OF(function))

Card::Card() : driver_(std::make_unique<Driver>()) {
  VCATTN_DRIVER(cuInit, 0);
  VCATTN_DRIVER(cuDeviceGet, &driver_->device, 0);
  VCATTN_DRIVER(cuDevicePrimaryCtxRetain, &driver_->context, driver_->device);
  VCATTN_DRIVER(cuCtxSetCurrent, driver_->context);
}

Card::~Card() = default;

std::string Card::name() const {
  char text[256] = {};
  VCATTN_DRIVER(cuDeviceGetName, text, sizeof text - 1, driver_->device);
  return text;
}

std::string Card::driver() const {
  int version = 0;
  VCATTN_DRIVER(cuDriverGetVersion, &version);
  return "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::vector<std::uint8_t> Card::run(Program const& program) {
  char log[4096] = {};
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  CUmodule module = nullptr;
  CUresult const loaded =
      driver_->find<decltype(cuModuleLoadDataEx)>("cuModuleLoadDataEx")(&module, program.ptx.c_str(), 2, options, values);
  if (loaded != CUDA_SUCCESS) throw std::runtime_error("the driver refuses " + program.name + ": " + log);
  CUfunction function = nullptr;
  VCATTN_DRIVER(cuModuleGetFunction, &function, module, "proof");
  VCATTN_DRIVER(cuFuncSetAttribute, function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, static_cast<int>(program.shared_bytes));

  CUdeviceptr input = 0, output = 0;
  VCATTN_DRIVER(cuMemAlloc, &input, program.input.size());
  VCATTN_DRIVER(cuMemAlloc, &output, program.output_bytes);
  VCATTN_DRIVER(cuMemcpyHtoD, input, program.input.data(), program.input.size());
  VCATTN_DRIVER(cuMemsetD8, output, 0, program.output_bytes);
  alignas(128) std::uint8_t parameters[kParameterBytes] = {};
  std::memcpy(parameters, &output, 8);
  std::memcpy(parameters + 8, &input, 8);
  if (BoxedInput const& boxes = program.boxes; boxes.columns != 0) {
    CUtensorMap map{};
    cuuint64_t const sizes[2] = {boxes.columns, boxes.rows};
    cuuint64_t const row_bytes[1] = {cuuint64_t{boxes.columns} * boxes.element_bytes};
    cuuint32_t const box[2] = {boxes.box_columns, boxes.box_rows};
    cuuint32_t const steps[2] = {1, 1};
    VCATTN_DRIVER(cuTensorMapEncodeTiled, &map, boxes.element_bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                  2, reinterpret_cast<void*>(input + boxes.offset), sizes, row_bytes, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  static_cast<CUtensorMapSwizzle>(boxes.swizzle), CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    std::memcpy(parameters + kMapOffset, &map, sizeof map);
  }
  void* arguments[] = {parameters};
  VCATTN_DRIVER(cuLaunchKernel, function, program.ctas, 1, 1, program.threads, 1, 1, program.shared_bytes, nullptr, arguments, nullptr);
  VCATTN_DRIVER(cuCtxSynchronize);
  std::vector<std::uint8_t> result(program.output_bytes);
  VCATTN_DRIVER(cuMemcpyDtoH, result.data(), output, result.size());
  VCATTN_DRIVER(cuMemFree, input);
  VCATTN_DRIVER(cuMemFree, output);
  VCATTN_DRIVER(cuModuleUnload, module);
  return result;
}

}  // namespace vcattn::emulator::proof
