#pragma once

// Small kernels in PTX for tests.

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "emulator/launch.hpp"
#include "emulator/loader.hpp"

namespace vcattn::emulator {

/// A kernel with parameters out, a, b, c: addresses in %rd1 .. %rd4, and 4 times the number of the thread among all in %rd0, added to each.
inline std::string kernel_text(std::string const& body) {
  return R"(.version 9.0
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel(
  .param .align 8 .b8 params[32]
)
{
  .reg .pred %p<8>;
  .reg .b16 %rs<8>;
  .reg .b32 %r<32>;
  .reg .f32 %f<8>;
  .reg .b64 %rd<16>;
  mov.u32 %r30, %tid.x;
  mov.u32 %r31, %ctaid.x;
  mov.u32 %r29, %ntid.x;
  mad.lo.s32 %r30, %r31, %r29, %r30;
  mul.wide.u32 %rd0, %r30, 4;
  ld.param.v2.u64 {%rd1, %rd2}, [params];
  ld.param.v2.u64 {%rd3, %rd4}, [params+16];
  add.s64 %rd1, %rd1, %rd0;
  add.s64 %rd2, %rd2, %rd0;
  add.s64 %rd3, %rd3, %rd0;
  add.s64 %rd4, %rd4, %rd0;
)" + body +
         "\n  ret;\n}\n";
}

/// Words in and out, one for each thread.
struct Program {
  std::vector<std::uint32_t> a, b, c;
  std::uint32_t threads = 32, ctas = 1, shared_bytes = 0;
  std::uint64_t seed = 1;
  std::vector<NamedRange> names = {};

  std::vector<std::uint32_t> run(std::string const& body) {
    Module const module = load_module(kernel_text(body));
    std::size_t const count = std::size_t{threads} * ctas;
    std::vector<std::uint32_t> out(count, 0xDDDDDDDDu);
    for (auto* words : {&a, &b, &c}) words->resize(count);
    GlobalMemory global;
    global.add(out.data(), count * 4, "out", Access::read_write, false);
    global.add(a.data(), count * 4, "a", Access::read, true);
    global.add(b.data(), count * 4, "b", Access::read, true);
    global.add(c.data(), count * 4, "c", Access::read, true);
    void const* const pointers[4] = {out.data(), a.data(), b.data(), c.data()};
    std::uint8_t parameters[32];
    std::memcpy(parameters, pointers, sizeof parameters);
    LaunchConfig config{{ctas}, {threads}, shared_bytes, seed, MatrixArithmetic::exact, names, false, false};
    (void)launch(module, "kernel", config, parameters, global);
    return out;
  }
};

}  // namespace vcattn::emulator
