// vcattn with --device emu, the emulator in the place of a GPU, and options that look into it.

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "devices.hpp"
#include "emulator/device/device.hpp"
#include "program.hpp"
#include "vcattn/types.hpp"

namespace {

using nlohmann::ordered_json;
using vcattn::Error;
using vcattn::ErrorCode;
using namespace vcattn::emulator;

/// Of a form of an instruction.
std::string kind_of(std::string const& form) {
  static std::map<std::string, char const*> const kKinds = {{"wgmma.", "matrix"},
                                                            {"mma.", "matrix"},
                                                            {"ldmatrix.", "shared memory"},
                                                            {"ld.shared", "shared memory"},
                                                            {"st.shared", "shared memory"},
                                                            {"atom.shared", "shared memory"},
                                                            {"ld.global", "global memory"},
                                                            {"st.global", "global memory"},
                                                            {"atom.global", "global memory"},
                                                            {"ld.local", "local memory"},
                                                            {"st.local", "local memory"},
                                                            {"ld.param", "parameters"},
                                                            {"cp.async", "copies"},
                                                            {"mbarrier.", "barriers"},
                                                            {"bar.", "barriers"},
                                                            {"fence.", "barriers"},
                                                            {"shfl.", "between lanes"},
                                                            {"vote.", "between lanes"},
                                                            {"redux.", "between lanes"},
                                                            {"match.", "between lanes"},
                                                            {"elect.", "between lanes"},
                                                            {"bra", "control"},
                                                            {"ret", "control"},
                                                            {"mov.", "moves"},
                                                            {"cvt.", "conversions"},
                                                            {"ld.", "generic memory"},
                                                            {"st.", "generic memory"},
                                                            {"setmaxnreg.", "control"}};
  std::string best;
  char const* kind = nullptr;
  for (auto const& [prefix, name] : kKinds) {
    if (form.starts_with(prefix) && prefix.size() > best.size()) {
      best = prefix;
      kind = name;
    }
  }
  if (kind != nullptr) return kind;
  for (char const* type : {".f32", ".f64", ".f16x2", ".bf16x2"}) {
    if (form.ends_with(type)) return "floating point";
  }
  return "integers and predicates";
}

ordered_json record_of(Counters const& c) {
  std::map<std::string, std::uint64_t> kinds;
  for (auto const& [form, count] : c.by_form) kinds[kind_of(form)] += count;
  return {{"launches", c.launches},
          {"warp_instructions", c.warp_instructions},
          {"thread_instructions", c.thread_instructions},
          {"by_kind", kinds},
          {"by_form", c.by_form},
          {"global_bytes", {{"read", c.global.read_bytes}, {"written", c.global.written_bytes}, {"sectors", 32 * c.global_sectors}}},
          {"copied_to_shared_bytes", c.copied_bytes},
          {"shared_bytes", {{"read", c.shared.read_bytes}, {"written", c.shared.written_bytes}, {"read_by_wgmma", c.matrix_shared_bytes}}},
          {"local_bytes", {{"read", c.local.read_bytes}, {"written", c.local.written_bytes}}},
          {"shared_wavefronts", c.shared_wavefronts},
          {"shared_bank_conflicts", c.shared_bank_conflicts}};
}

void set_traced_warp(std::string const& text) {
  unsigned cta = 0, warp = 0;
  char name[64] = {}, rest = 0;
  if (std::sscanf(text.c_str(), "%63[^,],%u,%u%c", name, &cta, &warp, &rest) != 3) {
    throw Error(ErrorCode::invalid_argument, fmt::format("--trace-warp: KERNEL,CTA,WARP required, got '{}'", text));
  }
  device().traced_kernel = name;
  device().trace.cta = cta;
  device().trace.warp = warp;
}

/// Files are opened before the long work.
std::ofstream opened(std::string const& option, std::string const& path) {
  std::ofstream file(path);
  if (!file) throw Error(ErrorCode::invalid_argument, fmt::format("{}: cannot write '{}'", option, path));
  return file;
}

}  // namespace

int main(int argc, char** argv) {
  vcattn::cli::gpu_name = "emu";
  std::ofstream counters, trace;
  int const exit_code = vcattn::cli::run_program(argc, argv, [&](CLI::App& app) {
    CLI::App& attend = *app.get_subcommand("attend");
    attend
        .add_option_function<std::uint64_t>(
            "--emu-seed", [](std::uint64_t seed) { device().seed = seed; }, "of the emulator's schedule")
        ->type_name("N");
    attend.add_flag_callback(
        "--emu-fast", [] { device().arithmetic = MatrixArithmetic::fast; }, "FP32 sums instead of the tensor core's");
    attend
        .add_option_function<std::string>(
            "--counters",
            [&](std::string const& path) {
              counters = opened("--counters", path);
              device().count_forms = true;
            },
            "what each kernel did: instructions by kind, bytes by level, bank conflicts")
        ->type_name("F.json");
    attend
        .add_option_function<std::string>(
            "--trace",
            [&](std::string const& path) {
              trace = opened("--trace", path);
              device().trace.out = &trace;
            },
            "every instruction of one warp")
        ->type_name("F.txt");
    attend
        .add_option_function<std::string>("--trace-warp", set_traced_warp,
                                          "the warp that --trace shows; part of a kernel's name, CTA, warp")
        ->type_name("KERNEL,CTA,WARP");
    if (device().traced_kernel.empty()) device().traced_kernel = "attention_kernel";
  });
  if (exit_code != 0) return exit_code;
  if (counters.is_open()) {
    ordered_json record;
    for (auto const& [name, of_kernel] : device().by_kernel) record[name] = record_of(of_kernel);
    counters << record.dump(2) << '\n';
  }
  bool const written = (!counters.is_open() || counters.flush()) && (!trace.is_open() || trace.flush());
  if (!written) {
    std::cerr << "vcattn: error: cannot write the counters or the trace: free space\n";
    return 1;
  }
  return 0;
}
