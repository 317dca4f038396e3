// vcattn with --device emu, the emulator in the place of a GPU, and options that look into it.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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
          {"global_bytes", {{"read", c.global.read_bytes}, {"written", c.global.written_bytes}}},
          {"global_sectors", c.global_sectors},
          {"copied_to_shared_bytes", c.copied_bytes},
          {"shared_bytes", {{"read", c.shared.read_bytes}, {"written", c.shared.written_bytes}, {"read_by_wgmma", c.matrix_shared_bytes}}},
          {"local_bytes", {{"read", c.local.read_bytes}, {"written", c.local.written_bytes}}},
          {"shared_wavefronts", c.shared_wavefronts},
          {"shared_bank_conflicts", c.shared_bank_conflicts}};
}

/// The number between two commas, or behind the last one.
std::uint32_t number_in(std::string const& text, std::size_t begin, std::size_t end) {
  std::uint32_t number = 0;
  auto const [rest, error] = std::from_chars(text.data() + begin, text.data() + end, number);
  if (error != std::errc{} || rest != text.data() + end) {
    throw Error(ErrorCode::invalid_argument, fmt::format("--trace-warp: KERNEL,CTA,WARP required, got '{}'", text));
  }
  return number;
}

void set_traced_warp(std::string const& text) {
  std::size_t const first = std::min(text.find(','), text.size()), second = std::min(text.find(',', first + 1), text.size());
  device().traced_kernel = text.substr(0, first);
  device().trace.cta = number_in(text, std::min(first + 1, text.size()), second);
  device().trace.warp = number_in(text, std::min(second + 1, text.size()), text.size());
}

void open(std::ofstream& file, char const* option, std::string const& path) {
  file.open(path);
  if (!file) throw Error(ErrorCode::invalid_argument, fmt::format("{}: cannot write '{}'", option, path));
}

}  // namespace

int main(int argc, char** argv) {
  vcattn::cli::gpu_name = "emu";
  std::string counters_path, trace_path, traced_warp = "attention_kernel,0,0";
  std::ofstream counters, trace;
  int const exit_code = vcattn::cli::run_program(argc, argv, [&](CLI::App& app) {
    app.remove_subcommand(app.get_subcommand("bench"));  // times mean nothing here
    CLI::App& attend = *app.get_subcommand("attend");
    CLI::Option* const trace_option = attend.add_option("--trace", trace_path, "every instruction of one warp")->type_name("F.txt");
    std::vector<CLI::Option*> const options = {
        trace_option,
        attend.add_option("--emu-seed", device().seed, "of the emulator's schedule")->type_name("N")->check(CLI::Range(0.0, 9e18)),
        attend.add_flag_callback(
            "--emu-fast", [] { device().arithmetic = MatrixArithmetic::fast; }, "FP32 sums instead of the tensor core's"),
        attend.add_option("--counters", counters_path, "what each kernel did: instructions by kind, bytes by level, bank conflicts")
            ->type_name("F.json"),
        attend
            .add_option("--trace-warp", traced_warp,
                        "the warp that --trace shows (" + traced_warp + "): part of a kernel's name, CTA, warp")
            ->type_name("KERNEL,CTA,WARP")
            ->needs(trace_option)};
    attend.parse_complete_callback([&, options] {
      bool const used = std::any_of(options.begin(), options.end(), [](CLI::Option const* option) { return option->count() > 0; });
      CLI::Option const* const where = attend.get_option("--device");
      if (used && (where->count() == 0 || where->as<std::string>() != "emu")) {
        throw Error(ErrorCode::invalid_argument, "--device emu required with options that look into the emulator");
      }
      set_traced_warp(traced_warp);
      namespace fs = std::filesystem;
      if (!trace_path.empty() && !counters_path.empty() && fs::weakly_canonical(trace_path) == fs::weakly_canonical(counters_path)) {
        throw Error(ErrorCode::invalid_argument, fmt::format("--counters and --trace: two files required, got '{}' twice", trace_path));
      }
      // Before the long work.
      if (!counters_path.empty()) open(counters, "--counters", counters_path);
      if (!trace_path.empty()) open(trace, "--trace", trace_path);
      device().count_forms = counters.is_open();
      device().trace.out = trace.is_open() ? &trace : nullptr;
    });
  });
  if (exit_code != 0) return exit_code;
  if (counters.is_open()) {
    ordered_json record;
    for (auto const& [name, of_kernel] : device().by_kernel) record[name] = record_of(of_kernel);
    counters << record.dump(2) << '\n';
  }
  if (trace.is_open() && trace.tellp() == 0) {
    std::cerr << fmt::format("vcattn: error: --trace-warp: no launch of a kernel with '{}' in its name has CTA {} and warp {}\n",
                             device().traced_kernel, device().trace.cta, device().trace.warp);
    return 1;
  }
  bool const written = (!counters.is_open() || counters.flush()) && (!trace.is_open() || trace.flush());
  if (!written) {
    std::cerr << "vcattn: error: cannot write the counters or the trace: free space\n";
    return 1;
  }
  return 0;
}
