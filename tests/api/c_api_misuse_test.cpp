// Misuse of the C ABI: a status and a text that names the argument, never a crash.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "c_api_case.hpp"

namespace vcattn::test {
namespace {

/// The call failed with `code`, and the text names `subject`.
void expect_error(vcattn_status status, vcattn_status code, std::string const& subject) {
  EXPECT_EQ(status, code) << vcattn_last_error();
  EXPECT_NE(std::string(vcattn_last_error()).find(subject), std::string::npos) << "'" << vcattn_last_error() << "' should name " << subject;
}

class CApiMisuse : public testing::Test {
 protected:
  vcattn_status attend_status() { return vcattn_attend(&problem, &options, &output, nullptr); }

  Case c;
  vcattn_problem problem = c.c_problem();
  vcattn_options options = c_options("vc8s");
  vcattn_output output = c.c_output();
};

TEST_F(CApiMisuse, TheCaseItselfIsFine) { EXPECT_EQ(attend_status(), VCATTN_OK) << vcattn_last_error(); }

TEST_F(CApiMisuse, NullPointers) {
  std::size_t size = 0;
  std::uint32_t word = 0;
  std::int32_t number = 0;
  std::int32_t const* pointer = nullptr;
  std::int64_t count = 0;
  double energy = 0.0;
  vcattn_tensor const v = problem.v;
  vcattn_prepared* prepared = nullptr;
  vcattn_schedule* schedule = nullptr;
  ASSERT_EQ(vcattn_prepare(&problem, &options, nullptr, 0, nullptr, &prepared), VCATTN_OK) << vcattn_last_error();
  ASSERT_EQ(vcattn_schedule_create(VCATTN_SCHEDULE_NEVER, 4, 0.25, &schedule), VCATTN_OK) << vcattn_last_error();

  struct Misuse {
    char const* subject;
    vcattn_status status;
    std::string text;
  };
  std::vector<Misuse> calls;
  auto const add = [&](char const* subject, vcattn_status status) { calls.push_back({subject, status, vcattn_last_error()}); };
  add("options", vcattn_options_init(nullptr, "vc8"));
  add("recipe", vcattn_options_init(&options, nullptr));
  add("options", vcattn_options_set(nullptr, "top", "126"));
  add("key", vcattn_options_set(&options, nullptr, "126"));
  add("value", vcattn_options_set(&options, "top", nullptr));
  add("problem", vcattn_supports(nullptr, &options, VCATTN_CPU, &word, nullptr, 0));
  add("options", vcattn_supports(&problem, nullptr, VCATTN_CPU, &word, nullptr, 0));
  add("supported", vcattn_supports(&problem, &options, VCATTN_CPU, nullptr, nullptr, 0));
  add("reason", vcattn_supports(&problem, &options, VCATTN_CPU, &word, nullptr, 8));
  add("problem", vcattn_prepared_size(nullptr, &options, &size));
  add("options", vcattn_prepared_size(&problem, nullptr, &size));
  add("size_bytes", vcattn_prepared_size(&problem, &options, nullptr));
  add("size_bytes", vcattn_workspace_size(&problem, &options, VCATTN_CPU, nullptr));
  vcattn_prepared* none = prepared;
  add("problem", vcattn_prepare(nullptr, &options, nullptr, 0, nullptr, &none));
  EXPECT_EQ(none, nullptr) << "a failed call must leave no handle";
  add("prepared", vcattn_prepare(&problem, &options, nullptr, 0, nullptr, nullptr));
  add("prepared", vcattn_prepared_bytes(nullptr, &size));
  add("prepared", vcattn_prepared_permutation(nullptr, &pointer, &count));
  add("prepared", vcattn_prepared_value_energy_removed(nullptr, &energy));
  add("prepared", vcattn_attention(nullptr, &output, nullptr, 0, nullptr));
  add("size_bytes", vcattn_prepared_bytes(prepared, nullptr));
  add("permutation", vcattn_prepared_permutation(prepared, nullptr, &count));
  add("count", vcattn_prepared_permutation(prepared, &pointer, nullptr));
  add("energy_removed", vcattn_prepared_value_energy_removed(prepared, nullptr));
  add("output", vcattn_attention(prepared, nullptr, nullptr, 0, nullptr));
  add("problem", vcattn_attend(nullptr, &options, &output, nullptr));
  add("options", vcattn_attend(&problem, nullptr, &output, nullptr));
  add("output", vcattn_attend(&problem, &options, nullptr, nullptr));
  add("clusters", vcattn_default_clusters(100, VCATTN_ORDER_LABEL, nullptr));
  auto grouping = zeroed<vcattn_grouping>();
  grouping.v = v;
  add("grouping", vcattn_group(nullptr, &options, nullptr));
  add("options", vcattn_group(&grouping, nullptr, nullptr));
  add("grouping", vcattn_group_workspace_size(nullptr, &options, VCATTN_CPU, &size));
  add("options", vcattn_group_workspace_size(&grouping, nullptr, VCATTN_CPU, &size));
  add("size_bytes", vcattn_group_workspace_size(&grouping, &options, VCATTN_CPU, nullptr));
  std::int32_t clusters = 0;
  add("grouping", vcattn_group_clusters(nullptr, &options, VCATTN_CPU, &clusters));
  add("options", vcattn_group_clusters(&grouping, nullptr, VCATTN_CPU, &clusters));
  add("clusters", vcattn_group_clusters(&grouping, &options, VCATTN_CPU, nullptr));
  add("v", vcattn_value_energy_removed(nullptr, nullptr, 0, 128, nullptr, 0, &energy, 1));
  add("energy_removed", vcattn_value_energy_removed(&v, nullptr, 0, 128, nullptr, 0, nullptr, 1));
  add("schedule", vcattn_schedule_create(VCATTN_SCHEDULE_NEVER, 4, 0.25, nullptr));
  add("schedule", vcattn_schedule_decide(nullptr, 0, 10, 0, 0, &word));
  add("action", vcattn_schedule_decide(schedule, 0, 10, 0, 0, nullptr));
  add("schedule", vcattn_schedule_permutation(nullptr, 0, 10, 0, 0, &v, &options, nullptr, 0, &pointer, &count, nullptr));
  add("v", vcattn_schedule_permutation(schedule, 0, 10, 0, 0, nullptr, &options, nullptr, 0, &pointer, &count, nullptr));
  add("options", vcattn_schedule_permutation(schedule, 0, 10, 0, 0, &v, nullptr, nullptr, 0, &pointer, &count, nullptr));
  add("permutation", vcattn_schedule_permutation(schedule, 0, 10, 0, 0, &v, &options, nullptr, 0, nullptr, &count, nullptr));
  add("count", vcattn_schedule_permutation(schedule, 0, 10, 0, 0, &v, &options, nullptr, 0, &pointer, nullptr, nullptr));
  add("schedule", vcattn_schedule_forget(nullptr, 0, 0));
  add("schedule", vcattn_schedule_clear(nullptr));
  EXPECT_EQ(vcattn_default_clusters(100, VCATTN_ORDER_LABEL, &number), VCATTN_OK);
  for (Misuse const& call : calls) {
    EXPECT_EQ(call.status, VCATTN_INVALID_ARGUMENT) << call.subject;
    EXPECT_EQ(call.text.find(call.subject), 0u) << call.text;
    EXPECT_NE(call.text.find("got NULL"), std::string::npos) << call.text;
  }
  EXPECT_EQ(vcattn_prepared_destroy(nullptr), VCATTN_OK);
  EXPECT_EQ(vcattn_prepared_destroy(prepared), VCATTN_OK);
  EXPECT_EQ(vcattn_schedule_destroy(nullptr), VCATTN_OK);
  EXPECT_EQ(vcattn_schedule_destroy(schedule), VCATTN_OK);
}

TEST_F(CApiMisuse, NullTensorData) {
  for (vcattn_tensor* tensor : {&problem.q, &problem.k, &problem.v}) {
    void const* const data = std::exchange(tensor->data, nullptr);
    EXPECT_EQ(attend_status(), VCATTN_INVALID_ARGUMENT);
    tensor->data = data;
  }
  output.o.data = nullptr;
  EXPECT_EQ(attend_status(), VCATTN_INVALID_ARGUMENT);
}

TEST_F(CApiMisuse, StructSizeTooSmallOrUninitialised) {
  for (std::uint32_t const size : {0u, 4u, 0xCCCCCCCCu, 0xFFFFFFFFu}) {
    for (std::uint32_t* member : {&problem.struct_size, &options.struct_size, &output.struct_size}) {
      std::uint32_t const right = std::exchange(*member, size);
      expect_error(attend_status(), VCATTN_INVALID_ARGUMENT, ".struct_size");
      *member = right;
    }
  }
}

TEST_F(CApiMisuse, StructSizeInsideAPointer) {
  output.struct_size = offsetof(vcattn_output, lse) + sizeof(void*) / 2;
  expect_error(attend_status(), VCATTN_INVALID_ARGUMENT, "output.struct_size");
  output.struct_size = sizeof(output);
}

template <typename Struct>
struct Newer {
  Struct known;
  std::array<unsigned char, 24> unknown;
};

template <typename Struct>
Newer<Struct> newer(Struct const& value) {
  Newer<Struct> result{value, {}};
  result.known.struct_size = sizeof(result);
  return result;
}

TEST_F(CApiMisuse, LongerStructsAreAcceptedWhereTheRestIsZero) {
  auto newer_problem = newer(problem);
  auto newer_options = newer(options);
  auto newer_output = newer(output);
  auto const status = [&] { return vcattn_attend(&newer_problem.known, &newer_options.known, &newer_output.known, nullptr); };
  EXPECT_EQ(status(), VCATTN_OK) << vcattn_last_error();
  for (auto* unknown : {&newer_problem.unknown, &newer_options.unknown, &newer_output.unknown}) {
    unknown->back() = 1;
    expect_error(status(), VCATTN_INVALID_ARGUMENT, "beyond byte");
    unknown->back() = 0;
  }
}

TEST_F(CApiMisuse, LongerOptionsAreWrittenWithZerosBehind) {
  auto longer = newer(options);
  longer.unknown.fill(0xAA);
  EXPECT_EQ(vcattn_options_init(&longer.known, "fp8"), VCATTN_OK) << vcattn_last_error();
  EXPECT_EQ(longer.known.struct_size, sizeof(longer));
  EXPECT_EQ(longer.known.recipe, VCATTN_RECIPE_FP8);
  for (unsigned char const byte : longer.unknown) EXPECT_EQ(byte, 0);
}

TEST_F(CApiMisuse, ShorterStructsAreCompletedWithZeros) {
  ASSERT_EQ(attend_status(), VCATTN_OK) << vcattn_last_error();
  std::vector<float> const expected = c.o;
  // What the caller's shorter struct does not own is filled with bytes that would be refused if they were read.
  std::memset(reinterpret_cast<unsigned char*>(&problem) + offsetof(vcattn_problem, has_softmax_scale), 0xFF,
              sizeof(problem) - offsetof(vcattn_problem, has_softmax_scale));
  problem.struct_size = offsetof(vcattn_problem, has_softmax_scale);
  options.check_finite = options.exact_f64 = 0xFFFFFFFFu;
  options.struct_size = offsetof(vcattn_options, check_finite);
  output.lse_count = -1;
  output.struct_size = offsetof(vcattn_output, lse);
  EXPECT_EQ(attend_status(), VCATTN_OK) << vcattn_last_error();
  EXPECT_TRUE(same_bits(c.o, expected));
}

TEST_F(CApiMisuse, ShorterOptionsAreNotWrittenBeyondTheirEnd) {
  options.check_finite = 0xFFFFFFFFu;
  options.struct_size = offsetof(vcattn_options, check_finite);
  EXPECT_EQ(vcattn_options_init(&options, "fp8"), VCATTN_OK) << vcattn_last_error();
  EXPECT_EQ(options.recipe, VCATTN_RECIPE_FP8);
  EXPECT_EQ(options.check_finite, 0xFFFFFFFFu);
  EXPECT_EQ(options.struct_size, offsetof(vcattn_options, check_finite));
}

TEST_F(CApiMisuse, ValuesOutsideTheEnumerations) {
  struct Field {
    std::uint32_t* member;
    char const* name;
  };
  for (Field const field : {Field{&problem.q.dtype, "problem.q.dtype"},
                            {&problem.k.dtype, "problem.k.dtype"},
                            {&problem.v.dtype, "problem.v.dtype"},
                            {&problem.causal, "problem.causal"},
                            {&problem.has_softmax_scale, "problem.has_softmax_scale"},
                            {&problem.reserved, "problem.reserved"},
                            {&problem.q.reserved, "problem.q.reserved"},
                            {&output.o.dtype, "output.o.dtype"},
                            {&output.reserved, "output.reserved"},
                            {&options.recipe, "options.recipe"},
                            {&options.qk, "options.qk"},
                            {&options.qk_scaling, "options.qk_scaling"},
                            {&options.qk_rounding, "options.qk_rounding"},
                            {&options.k_mean, "options.k_mean"},
                            {&options.q_mean, "options.q_mean"},
                            {&options.hadamard, "options.hadamard"},
                            {&options.scores, "options.scores"},
                            {&options.v, "options.v"},
                            {&options.v_per_channel, "options.v_per_channel"},
                            {&options.v_mean, "options.v_mean"},
                            {&options.emc, "options.emc"},
                            {&options.prob, "options.prob"},
                            {&options.exp_form, "options.exp_form"},
                            {&options.order, "options.order"},
                            {&options.check_finite, "options.check_finite"},
                            {&options.exact_f64, "options.exact_f64"}}) {
    std::uint32_t const right = std::exchange(*field.member, 77u);
    expect_error(attend_status(), VCATTN_INVALID_ARGUMENT, field.name);
    expect_error(attend_status(), VCATTN_INVALID_ARGUMENT, "got 77");
    *field.member = right;
  }
}

TEST_F(CApiMisuse, PointersWithoutCountsAndCountsWithoutPointers) {
  std::int32_t const number = 0;
  struct Field {
    std::int32_t const** pointer;
    std::int64_t* count;
    char const* name;
  };
  for (Field const field : {Field{&problem.seqused_k, &problem.seqused_k_count, "problem.seqused_k"},
                            {&problem.cu_seqlens_q, &problem.cu_seqlens_q_count, "problem.cu_seqlens_q"},
                            {&problem.cu_seqlens_k, &problem.cu_seqlens_k_count, "problem.cu_seqlens_k"},
                            {&problem.permutation, &problem.permutation_count, "problem.permutation"}}) {
    *field.count = 1;
    expect_error(attend_status(), VCATTN_INVALID_ARGUMENT, field.name);
    *field.pointer = &number;
    *field.count = 0;
    expect_error(attend_status(), VCATTN_INVALID_ARGUMENT, field.name);
    *field.count = -1;
    expect_error(attend_status(), VCATTN_INVALID_ARGUMENT, field.name);
    *field.pointer = nullptr;
    *field.count = 0;
  }
}

TEST_F(CApiMisuse, ShapesThatNoBackEndAccepts) {
  auto const refused = [&](char const* what, std::function<void(vcattn_problem&)> const& change) {
    vcattn_problem changed = c.c_problem();
    change(changed);
    vcattn_status const status = vcattn_attend(&changed, &options, &output, nullptr);
    EXPECT_TRUE(status == VCATTN_INVALID_ARGUMENT || status == VCATTN_UNSUPPORTED) << what << ": " << status;
    std::uint32_t supported = 1;
    std::array<char, 512> reason{};
    EXPECT_EQ(vcattn_supports(&changed, &options, VCATTN_CPU, &supported, reason.data(), reason.size()), VCATTN_OK) << vcattn_last_error();
    EXPECT_EQ(supported, 0u) << what;
    EXPECT_GT(std::strlen(reason.data()), 0u) << what;
  };
  for (std::size_t i = 0; i < 4; ++i) {
    refused("negative extent", [i](vcattn_problem& p) { p.q.shape[i] = p.k.shape[i] = p.v.shape[i] = -1; });
  }
  refused("k and v of different lengths", [](vcattn_problem& p) { p.v.shape[1] -= 1; });
  refused("batches differ", [](vcattn_problem& p) { p.q.shape[0] = 2; });
  refused("heads that do not divide", [](vcattn_problem& p) { p.k.shape[2] = p.v.shape[2] = 3; });
  refused("head_dim 7", [](vcattn_problem& p) { p.q.shape[3] = p.k.shape[3] = p.v.shape[3] = 7; });
  refused("head_dim differs", [](vcattn_problem& p) { p.k.shape[3] = 32; });
  refused("extent beyond memory", [](vcattn_problem& p) { p.q.shape[1] = std::numeric_limits<std::int64_t>::max(); });
  refused("seqused_k too long", [](vcattn_problem& p) {
    static std::array<std::int32_t, 2> const lengths{1, 1};
    p.seqused_k = lengths.data();
    p.seqused_k_count = 2;
  });
  refused("seqused_k outside 0..Sk", [](vcattn_problem& p) {
    static std::int32_t const length = 301;
    p.seqused_k = &length;
    p.seqused_k_count = 1;
  });
  refused("one cu_seqlens", [](vcattn_problem& p) {
    static std::array<std::int32_t, 2> const bounds{0, 70};
    p.cu_seqlens_q = bounds.data();
    p.cu_seqlens_q_count = 2;
  });
  refused("permutation of the wrong size", [](vcattn_problem& p) {
    static std::int32_t const index = 0;
    p.permutation = &index;
    p.permutation_count = 1;
  });
}

TEST_F(CApiMisuse, PermutationThatIsNone) {
  std::vector<std::int32_t> permutation(static_cast<std::size_t>(c.keys()), 0);
  problem.permutation = permutation.data();
  problem.permutation_count = c.keys();
  expect_error(attend_status(), VCATTN_INVALID_ARGUMENT, "permutation");
}

TEST_F(CApiMisuse, OutputsOfTheWrongShape) {
  output.lse_count -= 1;
  expect_error(attend_status(), VCATTN_INVALID_ARGUMENT, "lse");
  output.lse_count += 1;
  output.o.shape[1] -= 1;
  EXPECT_EQ(attend_status(), VCATTN_INVALID_ARGUMENT);
}

TEST_F(CApiMisuse, OutputOverAnInput) {
  output.o.data = const_cast<void*>(problem.q.data);
  expect_error(attend_status(), VCATTN_INVALID_ARGUMENT, "overlap");
}

TEST_F(CApiMisuse, OutputOrWorkspaceOverTheSmallInputs) {
  std::vector<std::int32_t> permutation(static_cast<std::size_t>(c.keys()));
  std::iota(permutation.begin(), permutation.end(), 0);
  problem.permutation = permutation.data();
  problem.permutation_count = c.keys();
  auto call = zeroed<vcattn_call>();
  call.workspace = permutation.data();
  call.workspace_bytes = permutation.size() * sizeof(std::int32_t);
  expect_error(vcattn_attend(&problem, &options, &output, &call), VCATTN_INVALID_ARGUMENT, "overlap");
  EXPECT_TRUE(std::is_sorted(permutation.begin(), permutation.end()));

  std::vector<float> table(static_cast<std::size_t>(c.keys() * Case::kHeadDim), 1.0f);
  vcattn_rope rope{sizeof(vcattn_rope), VCATTN_ROPE_INTERLEAVED, table.data(), table.data(), c.keys(), Case::kHeadDim, 0};
  problem.rope = &rope;
  output.o.data = table.data();
  expect_error(attend_status(), VCATTN_INVALID_ARGUMENT, "overlap");
}

TEST_F(CApiMisuse, AttentionTakesItsWorkspaceAsAnArgument) {
  vcattn_prepared* prepared = nullptr;
  ASSERT_EQ(vcattn_prepare(&problem, &options, nullptr, 0, nullptr, &prepared), VCATTN_OK) << vcattn_last_error();
  auto call = zeroed<vcattn_call>();
  std::vector<std::byte> memory(256);
  call.workspace = memory.data();
  call.workspace_bytes = memory.size();
  expect_error(vcattn_attention(prepared, &output, nullptr, 0, &call), VCATTN_INVALID_ARGUMENT, "call.workspace");
  EXPECT_EQ(vcattn_prepared_destroy(prepared), VCATTN_OK);
}

TEST_F(CApiMisuse, LseOverTheOutput) {
  output.lse = c.o.data() + 1;
  expect_error(attend_status(), VCATTN_INVALID_ARGUMENT, "overlap");
}

TEST_F(CApiMisuse, InterleavedViewsDoNotOverlap) {
  // q and o side by side in one buffer of rows [q | o]: extents overlap, elements do not.
  std::vector<float> rows = normal_values(2 * static_cast<std::int64_t>(c.o.size()), 7);
  std::int64_t const row = Case::kHeads * Case::kHeadDim;
  problem.q.data = rows.data();
  output.o.data = rows.data() + row;
  problem.q.stride[1] = output.o.stride[1] = 2 * row;
  EXPECT_EQ(attend_status(), VCATTN_OK) << vcattn_last_error();
}

TEST_F(CApiMisuse, CallsThatTheCpuDoesNotServe) {
  auto call = zeroed<vcattn_call>();
  auto const status = [&] { return vcattn_attend(&problem, &options, &output, &call); };
  EXPECT_EQ(status(), VCATTN_OK) << vcattn_last_error();
  call.device = VCATTN_CUDA;
  expect_error(status(), VCATTN_UNSUPPORTED, "use device cpu");
  call.device = 9;
  expect_error(status(), VCATTN_INVALID_ARGUMENT, "device");
  call.device = VCATTN_CPU;
  call.stream = &call;
  expect_error(status(), VCATTN_INVALID_ARGUMENT, "call.stream");
}

TEST_F(CApiMisuse, StorageAndWorkspace) {
  std::size_t storage_bytes = 0;
  ASSERT_EQ(vcattn_prepared_size(&problem, &options, &storage_bytes), VCATTN_OK) << vcattn_last_error();
  AlignedBuffer storage(storage_bytes);
  vcattn_prepared* prepared = nullptr;
  auto const prepare_status = [&](void* data, std::size_t size) {
    return vcattn_prepare(&problem, &options, data, size, nullptr, &prepared);
  };
  expect_error(prepare_status(storage.data(), storage_bytes - 1), VCATTN_INVALID_ARGUMENT, "storage");
  expect_error(prepare_status(storage.data() + 8, storage_bytes), VCATTN_INVALID_ARGUMENT, "storage");
  expect_error(prepare_status(storage.data(), 0), VCATTN_INVALID_ARGUMENT, "storage");
  expect_error(prepare_status(nullptr, storage_bytes), VCATTN_INVALID_ARGUMENT, "storage");
  expect_error(prepare_status(storage.data(), std::numeric_limits<std::size_t>::max()), VCATTN_INVALID_ARGUMENT, "storage");
  EXPECT_EQ(prepared, nullptr);
  ASSERT_EQ(prepare_status(storage.data(), storage_bytes), VCATTN_OK) << vcattn_last_error();

  std::size_t workspace_bytes = 0;
  ASSERT_EQ(vcattn_workspace_size(&problem, &options, VCATTN_CPU, &workspace_bytes), VCATTN_OK) << vcattn_last_error();
  AlignedBuffer workspace(workspace_bytes + 1);
  auto const attention_status = [&](void* data, std::size_t size) { return vcattn_attention(prepared, &output, data, size, nullptr); };
  expect_error(attention_status(workspace.data() + 8, workspace_bytes + 1), VCATTN_INVALID_ARGUMENT, "workspace");
  expect_error(attention_status(nullptr, workspace_bytes + 1), VCATTN_INVALID_ARGUMENT, "workspace");
  if (workspace_bytes > 1) expect_error(attention_status(workspace.data(), workspace_bytes - 1), VCATTN_INVALID_ARGUMENT, "workspace");
  EXPECT_EQ(vcattn_prepared_destroy(prepared), VCATTN_OK);
}

TEST_F(CApiMisuse, NonfiniteInputIsReportedOnRequest) {
  c.values()[5] = std::nanf("");
  options.check_finite = 1;
  expect_error(attend_status(), VCATTN_NONFINITE, "v must be finite");
}

TEST_F(CApiMisuse, OptionTexts) {
  expect_error(vcattn_options_init(&options, "vc9"), VCATTN_INVALID_ARGUMENT, "vc8s");
  expect_error(vcattn_options_set(&options, "colour", "red"), VCATTN_INVALID_ARGUMENT, "hadamard");
  vcattn_options const before = options;
  expect_error(vcattn_options_set(&options, "expcast", "cubic"), VCATTN_INVALID_ARGUMENT, "two_line");
  EXPECT_EQ(std::memcmp(&before, &options, sizeof(options)), 0);
}

TEST_F(CApiMisuse, SupportsCutsItsReason) {
  problem.q.shape[3] = problem.k.shape[3] = problem.v.shape[3] = 7;
  std::uint32_t supported = 1;
  std::array<char, 8> reason{};
  reason.fill('x');
  EXPECT_EQ(vcattn_supports(&problem, &options, VCATTN_CPU, &supported, reason.data(), reason.size()), VCATTN_OK);
  EXPECT_EQ(supported, 0u);
  EXPECT_EQ(std::strlen(reason.data()), reason.size() - 1);
  EXPECT_EQ(vcattn_supports(&problem, &options, VCATTN_CPU, &supported, nullptr, 0), VCATTN_OK);
  expect_error(vcattn_supports(&problem, &options, 5, &supported, nullptr, 0), VCATTN_INVALID_ARGUMENT, "device");
}

TEST_F(CApiMisuse, SupportsSaysYesWithAnEmptyReason) {
  std::uint32_t supported = 0;
  std::array<char, 8> reason{'x'};
  EXPECT_EQ(vcattn_supports(&problem, &options, VCATTN_CPU, &supported, reason.data(), reason.size()), VCATTN_OK);
  EXPECT_EQ(supported, 1u);
  EXPECT_STREQ(reason.data(), "");
}

TEST_F(CApiMisuse, Grouping) {
  constexpr std::int32_t kClusters = 8;
  options.clusters = kClusters;
  std::vector<std::int32_t> permutation(static_cast<std::size_t>(c.keys()));
  std::vector<float> centroids(static_cast<std::size_t>(kClusters * Case::kHeadDim));
  auto grouping = zeroed<vcattn_grouping>();
  grouping.v = problem.v;
  auto const status = [&] { return vcattn_group(&grouping, &options, nullptr); };
  expect_error(status(), VCATTN_INVALID_ARGUMENT, "grouping.permutation");
  grouping.permutation = permutation.data();
  grouping.permutation_count = c.keys();
  for (std::int64_t const extent : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()}) {
    for (std::int64_t& member : grouping.v.shape) {
      std::int64_t const right = std::exchange(member, extent);
      expect_error(status(), VCATTN_INVALID_ARGUMENT, "check the shape");
      member = right;
    }
  }
  grouping.permutation_count = c.keys() - 1;
  expect_error(status(), VCATTN_INVALID_ARGUMENT, "grouping.permutation");
  grouping.permutation_count = c.keys();
  EXPECT_EQ(status(), VCATTN_OK) << vcattn_last_error();

  grouping.centroids = centroids.data();
  grouping.centroids_count = static_cast<std::int64_t>(centroids.size()) - 1;
  expect_error(status(), VCATTN_INVALID_ARGUMENT, "grouping.centroids");
  grouping.centroids_count += 1;
  EXPECT_EQ(status(), VCATTN_OK) << vcattn_last_error();
  grouping.warm_centroids = centroids.data();
  grouping.warm_centroids_count = grouping.centroids_count - 1;
  expect_error(status(), VCATTN_INVALID_ARGUMENT, "grouping.warm_centroids");
  grouping.warm_centroids_count = Case::kHeadDim;
  expect_error(status(), VCATTN_INVALID_ARGUMENT, "clusters");
  std::vector<float> longer(centroids.size() + 1);
  grouping.centroids = longer.data();
  grouping.warm_centroids = longer.data() + 1;
  grouping.warm_centroids_count = grouping.centroids_count;
  expect_error(status(), VCATTN_INVALID_ARGUMENT, "overlap");
  grouping.warm_centroids = nullptr;
  grouping.warm_centroids_count = 0;
  std::size_t workspace_bytes = 1;
  EXPECT_EQ(vcattn_group_workspace_size(&grouping, &options, VCATTN_CPU, &workspace_bytes), VCATTN_OK) << vcattn_last_error();
  EXPECT_EQ(workspace_bytes, 0u);
  expect_error(vcattn_group_workspace_size(&grouping, &options, 5, &workspace_bytes), VCATTN_INVALID_ARGUMENT, "device");
  std::int32_t clusters = 0;
  expect_error(vcattn_group_clusters(&grouping, &options, 5, &clusters), VCATTN_INVALID_ARGUMENT, "device");

  grouping.permutation = reinterpret_cast<std::int32_t*>(c.values().data());
  expect_error(status(), VCATTN_INVALID_ARGUMENT, "overlap");
  grouping.permutation = permutation.data();
  grouping.seqused_k = permutation.data();
  grouping.seqused_k_count = 1;
  permutation[0] = 1;
  expect_error(status(), VCATTN_INVALID_ARGUMENT, "overlap");
  grouping.seqused_k = nullptr;
  grouping.seqused_k_count = 0;
  grouping.centroids = c.values().data() + 64;
  expect_error(status(), VCATTN_INVALID_ARGUMENT, "overlap");
}

TEST_F(CApiMisuse, GroupingOverlapSeesNegativeStrides) {
  std::vector<std::int32_t> permutation(static_cast<std::size_t>(c.keys()));
  auto grouping = zeroed<vcattn_grouping>();
  grouping.v = problem.v;
  grouping.v.data = c.values().data() + (c.keys() - 1) * Case::kHeadDim;
  grouping.v.stride[1] = -Case::kHeadDim;
  grouping.permutation = permutation.data();
  grouping.permutation_count = c.keys();
  EXPECT_EQ(vcattn_group(&grouping, &options, nullptr), VCATTN_OK) << vcattn_last_error();
  grouping.permutation = reinterpret_cast<std::int32_t*>(c.values().data());
  expect_error(vcattn_group(&grouping, &options, nullptr), VCATTN_INVALID_ARGUMENT, "overlap");
}

TEST_F(CApiMisuse, EnergyBuffersAndBlocks) {
  std::array<double, 2> energy{};
  auto const status = [&](std::int32_t block, std::int64_t count) {
    return vcattn_value_energy_removed(&problem.v, nullptr, 0, block, nullptr, 0, energy.data(), count);
  };
  EXPECT_EQ(status(128, 1), VCATTN_OK) << vcattn_last_error();
  expect_error(status(128, 2), VCATTN_INVALID_ARGUMENT, "energy_removed");
  EXPECT_EQ(status(0, 1), VCATTN_INVALID_ARGUMENT);
  EXPECT_EQ(status(-64, 1), VCATTN_INVALID_ARGUMENT);
}

TEST_F(CApiMisuse, Schedule) {
  vcattn_schedule* schedule = nullptr;
  expect_error(vcattn_schedule_create(17, 4, 0.25, &schedule), VCATTN_INVALID_ARGUMENT, "policy");
  EXPECT_EQ(schedule, nullptr);
  EXPECT_EQ(vcattn_schedule_create(VCATTN_SCHEDULE_FIRST_QUARTER, 0, 0.25, &schedule), VCATTN_INVALID_ARGUMENT);
  ASSERT_EQ(vcattn_schedule_create(VCATTN_SCHEDULE_EVERY_STEP, 4, 0.25, &schedule), VCATTN_OK) << vcattn_last_error();
  std::uint32_t action = 0;
  EXPECT_EQ(vcattn_schedule_decide(schedule, 10, 10, 0, 0, &action), VCATTN_INVALID_ARGUMENT);
  EXPECT_EQ(vcattn_schedule_decide(schedule, -1, 10, 0, 0, &action), VCATTN_INVALID_ARGUMENT);

  std::int32_t const* permutation = nullptr;
  std::int64_t count = 0;
  auto const permutation_status = [&](vcattn_tensor const& v) {
    return vcattn_schedule_permutation(schedule, 1, 10, 0, 0, &v, &options, nullptr, 0, &permutation, &count, nullptr);
  };
  EXPECT_EQ(permutation_status(problem.v), VCATTN_OK) << vcattn_last_error();
  vcattn_tensor other = problem.v;
  other.shape[1] -= 1;
  EXPECT_EQ(permutation_status(other), VCATTN_INVALID_ARGUMENT) << "a state of another resolution must be refused";
  EXPECT_EQ(vcattn_schedule_forget(schedule, 0, 0), VCATTN_OK);
  EXPECT_EQ(permutation_status(other), VCATTN_OK) << vcattn_last_error();
  EXPECT_EQ(vcattn_schedule_destroy(schedule), VCATTN_OK);
}

TEST_F(CApiMisuse, ErrorsBelongToTheirThread) {
  expect_error(vcattn_options_init(&options, "vc9"), VCATTN_INVALID_ARGUMENT, "vc9");
  std::string const here = vcattn_last_error();
  std::thread([&] {
    EXPECT_STREQ(vcattn_last_error(), "");
    auto other = zeroed<vcattn_options>();
    expect_error(vcattn_options_init(&other, "vc10"), VCATTN_INVALID_ARGUMENT, "vc10");
  }).join();
  EXPECT_EQ(vcattn_last_error(), here);
  EXPECT_EQ(attend_status(), VCATTN_OK);
  EXPECT_EQ(vcattn_last_error(), here) << "success must leave the text alone";
}

TEST_F(CApiMisuse, LongErrorTextsAreCut) {
  std::string const name(100000, 'x');
  expect_error(vcattn_options_init(&options, name.c_str()), VCATTN_INVALID_ARGUMENT, "xxx");
  EXPECT_LT(std::strlen(vcattn_last_error()), name.size());
}

}  // namespace
}  // namespace vcattn::test
