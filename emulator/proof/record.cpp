// vcattn_emulator_record record VECTORS RAW DATE COMMIT: runs every program on the GPU, writes VECTORS, and every output into the folder
// RAW. vcattn_emulator_record compare RAW [NAME]: the emulator against those outputs, bit by bit. vcattn_emulator_record ptx FOLDER: the
// programs as files.

#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>

#include "emulator/fault.hpp"
#include "emulator/proof/machine.hpp"
#include "emulator/proof/vectors.hpp"

namespace vcattn::emulator::proof {
namespace {

std::vector<Program> all_programs() {
  std::vector<Program> programs = attention_programs();
  for (auto more : {preparation_programs(), box_programs()}) std::move(more.begin(), more.end(), std::back_inserter(programs));
  return programs;
}

std::string file_of(std::string const& folder, std::size_t number, char const* ending) {
  return folder + "/" + std::to_string(number) + ending;
}

void record(std::string const& vectors_path, std::string const& raw, std::string const& date, std::string const& commit,
            std::string const& name) {
  Card card;
  Vectors vectors = std::filesystem::exists(vectors_path) ? read_vectors(vectors_path) : Vectors{};
  vectors.conditions = {{"device", card.name()}, {"driver", card.driver()}, {"date", date}, {"commit", commit}};
  auto const programs = all_programs();
  for (std::size_t n = 0; n < programs.size(); ++n) {
    Program const& program = programs[n];
    if (program.name.find(name) == std::string::npos) continue;
    try {
      auto const output = card.run(program);
      if (output != card.run(program)) std::cout << program.name << ": two runs differ\n";
      if (program.tolerance != 0) {
        vectors.words[program.name] = result_words(output);
      } else {
        vectors.hashes[program.name] = block_hashes(output);
      }
      std::ofstream(file_of(raw, n, ".bin"), std::ios::binary)
          .write(reinterpret_cast<char const*>(output.data()), static_cast<std::streamsize>(output.size()));
    } catch (std::runtime_error const& error) {
      std::cout << program.name << ": " << error.what() << std::endl;
      if (std::string(error.what()).find("refuses") == std::string::npos) break;  // the context is lost
    }
  }
  write_vectors(vectors_path, vectors);
  std::cout << vectors.hashes.size() + vectors.words.size() << " of " << programs.size() << " programs are recorded\n";
}

/// Operands of an elementwise program, for the eye.
void show(Program const& program, std::size_t word, std::uint32_t emulated, std::uint32_t measured) {
  std::cout << "  word " << std::dec << word << ": emulated " << std::hex << emulated << ", measured " << measured;
  std::size_t const count = std::size_t{program.ctas} * program.threads;
  if (program.input.size() % (8 * count) == 0 && program.output_bytes % (8 * count) == 0) {
    std::cout << " of";
    for (std::size_t j = 0; j < program.input.size() / (8 * count); ++j) {
      std::uint64_t operand;
      std::memcpy(&operand, program.input.data() + (j * count + word / 2 % count) * 8, 8);
      std::cout << ' ' << operand;
    }
  }
  std::cout << std::dec << '\n';
}

int compare(std::string const& raw, std::string const& name) {
  int wrong = 0;
  auto const programs = all_programs();
  for (std::size_t n = 0; n < programs.size(); ++n) {
    Program const& program = programs[n];
    if (program.name.find(name) == std::string::npos) continue;
    std::ifstream in(file_of(raw, n, ".bin"), std::ios::binary);
    std::vector<char> const measured{std::istreambuf_iterator<char>(in), {}};
    std::vector<std::uint8_t> output;
    try {
      output = run_emulated(program, 1);
    } catch (std::exception const& error) {
      std::cout << program.name << ": " << error.what() << '\n';
      ++wrong;
      continue;
    }
    if (measured.size() != output.size()) {
      std::cout << program.name << ": " << measured.size() << " bytes measured, " << output.size() << " emulated\n";
      ++wrong;
      continue;
    }
    std::size_t different = 0;
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < output.size() / 4; ++i) {
      std::uint32_t a = 0, b = 0;
      std::memcpy(&a, output.data() + 4 * i, 4);
      std::memcpy(&b, measured.data() + 4 * i, 4);
      largest = std::max(largest, distance(a, b));
      if (a == b) continue;
      if (different++ < 6 && program.tolerance == 0) show(program, i, a, b);
    }
    if (different != 0)
      std::cout << program.name << ": " << different << " of " << output.size() / 4 << " words differ, as FP32 by up to " << largest
                << " ulp\n";
    if (different != 0 && (program.tolerance == 0 || largest > program.tolerance)) ++wrong;
  }
  std::cout << wrong << " of " << programs.size() << " programs differ\n";
  return wrong == 0 ? 0 : 1;
}

void write_ptx(std::string const& folder) {
  auto const programs = all_programs();
  for (std::size_t n = 0; n < programs.size(); ++n)
    std::ofstream(file_of(folder, n, ".ptx")) << "// " << programs[n].name << '\n' << programs[n].ptx;
}

int run(std::vector<std::string> const& arguments) {
  if (arguments.size() >= 5 && arguments[0] == "record") {
    std::filesystem::create_directories(arguments[2]);
    record(arguments[1], arguments[2], arguments[3], arguments[4], arguments.size() > 5 ? arguments[5] : "");
    return 0;
  }
  if (arguments.size() >= 2 && arguments[0] == "compare") return compare(arguments[1], arguments.size() > 2 ? arguments[2] : "");
  if (arguments.size() == 2 && arguments[0] == "ptx") {
    std::filesystem::create_directories(arguments[1]);
    write_ptx(arguments[1]);
    return 0;
  }
  std::cerr << "usage: record VECTORS RAW DATE COMMIT [NAME] | compare RAW [NAME] | ptx FOLDER\n";
  return 2;
}

}  // namespace
}  // namespace vcattn::emulator::proof

int main(int argc, char** argv) {
  try {
    return vcattn::emulator::proof::run({argv + 1, argv + argc});
  } catch (std::exception const& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 1;
  }
}
