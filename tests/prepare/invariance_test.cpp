// What must not change a byte of the prepared slab: thread counts, strides, padding, memory that the caller supplies.

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "attention/run.hpp"
#include "core/half.hpp"
#include "formats/prepared_layout.hpp"
#include "reference/problems.hpp"
#include "vcattn/attention.hpp"

namespace vcattn {
namespace {

using testing_support::OwnedProblem;
using testing_support::Sizes;

std::vector<std::byte> bytes_of(Prepared const& prepared) {
  return {prepared.impl().slab,
          prepared.impl().slab + prepared.impl().layout.lse_correction.offset + prepared.impl().layout.lse_correction.bytes};
}

class Invariance : public testing::TestWithParam<Recipe> {
 protected:
  Options options_ = recipe_options(GetParam());
};

TEST_P(Invariance, ThreadCountDoesNotMatter) {
  OwnedProblem const owned = OwnedProblem::normal({2, 300, 517, 4, 2, 64}, 11);
  options_.num_threads = 1;
  auto const one = bytes_of(prepare(owned.problem(), options_));
  for (std::int32_t const threads : {2, 3, 0}) {
    options_.num_threads = threads;
    EXPECT_EQ(bytes_of(prepare(owned.problem(), options_)), one) << threads;
  }
}

TEST_P(Invariance, StridesDoNotMatter) {
  Sizes const sizes{2, 130, 140, 4, 2, 64};
  OwnedProblem owned = OwnedProblem::normal(sizes, 12);
  owned.round_to_bf16();
  Problem const nhd = owned.problem();
  // The same numbers as bf16 slices of one buffer, heads outermost and channels two apart.
  std::vector<std::vector<std::uint16_t>> buffers;
  auto const strided = [&](TensorView const& t) {
    auto const [b, s, h, d] = t.shape;
    auto& buffer = buffers.emplace_back(static_cast<std::size_t>(b * s * h * d * 2), core::bf16_encode(1e4f));
    TensorView view = t;
    view.dtype = DType::bf16;
    view.stride = {s * d * 2, d * 2, b * s * d * 2, 2};
    view.data = buffer.data();
    for (std::int64_t ib = 0; ib < b; ++ib) {
      for (std::int64_t is = 0; is < s; ++is) {
        for (std::int64_t ih = 0; ih < h; ++ih) {
          for (std::int64_t id = 0; id < d; ++id) {
            float const x = static_cast<float const*>(t.data)[ib * t.stride[0] + is * t.stride[1] + ih * t.stride[2] + id * t.stride[3]];
            buffer[static_cast<std::size_t>(ib * view.stride[0] + is * view.stride[1] + ih * view.stride[2] + id * view.stride[3])] =
                core::bf16_encode(x);
          }
        }
      }
    }
    return view;
  };
  Problem other = nhd;
  buffers.reserve(3);
  other.q = strided(nhd.q);
  other.k = strided(nhd.k);
  other.v = strided(nhd.v);
  EXPECT_EQ(bytes_of(prepare(other, options_)), bytes_of(prepare(nhd, options_)));
}

TEST_P(Invariance, PaddingIsNeverReadAsNumbers) {
  Sizes const sizes{2, 70, 300, 2, 2, 64};
  std::vector<std::int32_t> const used = {131, 256};
  std::vector<std::vector<std::byte>> results;
  for (float const filler : {0.0f, 1e4f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    OwnedProblem owned = OwnedProblem::normal(sizes, 13);
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t row = used[static_cast<std::size_t>(b)]; row < sizes.seqlen_kv; ++row) {
        std::fill_n(owned.k_row(b, row), 2 * 64, filler);
        std::fill_n(owned.v_row(b, row), 2 * 64, filler);
      }
    }
    Problem problem = owned.problem();
    problem.seqused_k = used;
    results.push_back(bytes_of(prepare(problem, options_)));
  }
  for (auto const& result : results) EXPECT_EQ(result, results.front());
}

TEST_P(Invariance, SuppliedStorageHoldsTheSameBytesWhateverWasInIt) {
  OwnedProblem const owned = OwnedProblem::normal({1, 129, 200, 2, 1, 64}, 14);
  auto const expected = bytes_of(prepare(owned.problem(), options_));
  std::size_t const bytes = prepared_size_bytes(owned.problem(), options_);
  std::vector<std::byte> memory(bytes + 256, std::byte{0xFF});
  auto const address = reinterpret_cast<std::uintptr_t>(memory.data());
  std::span<std::byte> const storage(memory.data() + (256 - address % 256) % 256, bytes);
  Prepared const prepared = prepare(owned.problem(), options_, storage);
  EXPECT_EQ(prepared.impl().slab, storage.data());
  // Between sections there is padding that nobody writes.
  auto const& l = prepared.impl().layout;
  for (formats::Section const& s :
       {l.q_codes, l.q_scale_factors, l.q_descale, l.q_mean, l.k_codes, l.k_scale_factors, l.k_descale, l.k_high, l.score_multiplier,
        l.score_bound, l.score_variant, l.v_codes, l.v_scale_factors, l.v_descale, l.v_mean, l.v_global_mean, l.lse_correction}) {
    EXPECT_EQ(0, std::memcmp(storage.data() + s.offset, expected.data() + s.offset, s.bytes));
  }
  EXPECT_THROW(prepare(owned.problem(), options_, storage.first(bytes - 1)), Error);
  EXPECT_THROW(prepare(owned.problem(), options_, std::span<std::byte>(memory).subspan(1)), Error);
}

INSTANTIATE_TEST_SUITE_P(Recipes, Invariance, testing::ValuesIn(all_recipes().begin(), all_recipes().end()),
                         testing_support::recipe_case_name);

}  // namespace
}  // namespace vcattn
