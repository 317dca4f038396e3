// Speed of the emulator on the attention kernel: vcattn_emulator_speed [seqlen]. Processor time, of one thread.

#include <fmt/format.h>

#include <cstdlib>
#include <ctime>

#include "cuda/attention_case.hpp"
#include "emulator/device/device.hpp"

int main(int argc, char** argv) {
  using namespace vcattn;
  using emulator::MatrixArithmetic;
  auto& device = emulator::device();
  std::int64_t const seqlen = argc > 1 ? std::atol(argv[1]) : 1024;
  testing_support::Sizes const sizes{1, seqlen, seqlen, 1, 1, 128};
  auto const owned = testing_support::OwnedProblem::normal(sizes, 1);
  Prepared const prepared = to_cuda(prepare(owned.problem(), cuda_test::options_of("vc8")));
  device.time_products = true;
  (void)cuda_test::run(prepared);  // loads the modules
  for (MatrixArithmetic const arithmetic : {MatrixArithmetic::exact, MatrixArithmetic::fast}) {
    device.arithmetic = arithmetic;
    device.counters = {};
    std::clock_t const start = std::clock();
    (void)cuda_test::run(prepared);
    double const seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    double const other = seconds - device.counters.matrix_seconds;
    fmt::print(
        "{} arithmetic, {} x {} x 128, one head: {:.3f} s, {:.3f} s of them for {} wgmma; {:.1f} M thread-instructions, {:.0f} M/s beside "
        "wgmma\n",
        arithmetic == MatrixArithmetic::exact ? "exact" : "fast", seqlen, seqlen, seconds, device.counters.matrix_seconds,
        device.counters.matrix_instructions, static_cast<double>(device.counters.thread_instructions) / 1e6,
        static_cast<double>(device.counters.thread_instructions) / 1e6 / other);
  }
}
