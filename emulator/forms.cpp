#include "emulator/forms.hpp"

#include <algorithm>

#include "device/cpu/isa.hpp"
#include "emulator/lane_ops.hpp"

namespace vcattn::emulator {

namespace {

std::vector<Form> all_forms() {
  std::vector<Form> forms;
  for (auto const& part : {lane_forms(), memory_forms(), warp_forms(), async_forms(), matrix_forms(), mma_forms()}) {
    forms.insert(forms.end(), part.begin(), part.end());
  }
  std::stable_sort(forms.begin(), forms.end(), [](Form const& a, Form const& b) { return std::string_view(a.name) < b.name; });
  return forms;
}

}  // namespace

std::vector<Form> lane_forms() {
  std::span<Form const> forms = baseline::lane_forms();
#if defined(__x86_64__)
  using device::cpu::Isa;
  if (device::cpu::best_isa() == Isa::avx2) forms = avx2::lane_forms();
  if (device::cpu::best_isa() == Isa::avx512) forms = avx512::lane_forms();
#endif
  return {forms.begin(), forms.end()};
}

std::span<Form const> forms_named(std::string_view name) {
  static std::vector<Form> const kForms = all_forms();
  struct Order {
    bool operator()(Form const& form, std::string_view other) const { return form.name < other; }
    bool operator()(std::string_view other, Form const& form) const { return other < form.name; }
  };
  auto const [first, last] = std::equal_range(kForms.begin(), kForms.end(), name, Order{});
  return {first, last};
}

}  // namespace vcattn::emulator
