// Every form of an instruction in the kernels' PTX is in a program whose result a GPU has given.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <tuple>

#include "emulator/loader.hpp"
#include "emulator/proof/program.hpp"

namespace vcattn::emulator::proof {
namespace {

/// The same name with other kinds of operands is another form where another function does it.
using FormKey = std::tuple<std::string, LaneFunction, MachineFunction>;

/// Forms of a module with an instruction of each.
std::map<FormKey, std::string> forms_of(std::string const& ptx) {
  std::map<FormKey, std::string> forms;
  Module const module = load_module(ptx);
  for (auto const& [name, kernel] : module.kernels) {
    for (Instruction const& in : kernel.code) forms.try_emplace({kernel.form_names[in.form], in.lanes, in.machine}, kernel.texts[in.text]);
  }
  return forms;
}

/// Why a form needs no program; nullptr: it does.
char const* proved_otherwise(std::string const& name) {
  if (name.starts_with("setmaxnreg.")) return "no result: who waits for registers in vain shows in whole kernels";
  if (name.starts_with("ld.param.")) return "no operands: whole kernels read their parameters so";
  return nullptr;
}

TEST(KernelForms, EachHasAProgram) {
  std::set<FormKey> proved;
  for (auto const& programs : {attention_programs(), box_programs(), preparation_programs()}) {
    for (Program const& program : programs) {
      for (auto const& [form, text] : forms_of(program.ptx)) proved.insert(form);
    }
  }
  std::size_t files = 0;
  for (auto const& entry : std::filesystem::directory_iterator(VCATTN_PTX_FOLDER)) {
    if (entry.path().extension() != ".ptx") continue;
    ++files;
    std::ifstream in(entry.path());
    for (auto const& [form, text] : forms_of({std::istreambuf_iterator<char>(in), {}})) {
      if (proved.count(form) != 0 || proved_otherwise(std::get<0>(form)) != nullptr) continue;
      ADD_FAILURE() << "no program in emulator/proof/program.cpp has `" << text << "` of " << entry.path().filename();
      proved.insert(form);
    }
  }
  EXPECT_GE(files, 21u);
}

}  // namespace
}  // namespace vcattn::emulator::proof
