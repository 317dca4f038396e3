// What the commands print and write for good input.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/program.hpp"
#include "cli/temporary_folder.hpp"
#include "cli/tensor_files.hpp"
#include "vcattn/options.hpp"
#include "vcattn/version.hpp"

namespace vcattn::test {
namespace {

using nlohmann::json;

Outcome run_successfully(std::vector<std::string> const& arguments) {
  Outcome const outcome = run_program(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  return outcome;
}

/// Textbook attention in double of [B, S, H, D] tensors, and its log-sum-exp [B, H, Sq].
std::pair<FloatTensor, FloatTensor> textbook(FloatTensor const& q, FloatTensor const& k, FloatTensor const& v, bool causal) {
  std::int64_t const batch = q.shape[0], seqlen_q = q.shape[1], heads = q.shape[2], head_dim = q.shape[3], seqlen_kv = k.shape[1];
  FloatTensor o{"o", q.shape, std::vector<float>(q.values.size())};
  FloatTensor lse{"lse", {batch, heads, seqlen_q}, {}};
  auto const row = [&](FloatTensor const& tensor, std::int64_t b, std::int64_t s, std::int64_t h) {
    return tensor.values.data() + ((b * tensor.shape[1] + s) * heads + h) * head_dim;
  };
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < seqlen_q; ++i) {
        std::int64_t const visible = causal ? std::clamp<std::int64_t>(i + 1 + seqlen_kv - seqlen_q, 0, seqlen_kv) : seqlen_kv;
        std::vector<double> weights;
        double sum = 0;
        for (std::int64_t j = 0; j < visible; ++j) {
          double dot = 0;
          for (std::int64_t d = 0; d < head_dim; ++d) dot += static_cast<double>(row(q, b, i, h)[d]) * row(k, b, j, h)[d];
          weights.push_back(std::exp(dot / std::sqrt(static_cast<double>(head_dim))));
          sum += weights.back();
        }
        for (std::int64_t d = 0; d < head_dim; ++d) {
          double value = 0;
          for (std::int64_t j = 0; j < visible; ++j) value += weights[static_cast<std::size_t>(j)] * row(v, b, j, h)[d];
          o.values[static_cast<std::size_t>(((b * seqlen_q + i) * heads + h) * head_dim + d)] = static_cast<float>(value / sum);
        }
        lse.values.push_back(static_cast<float>(std::log(sum)));
      }
    }
  }
  return {o, lse};
}

double relative_error(FloatTensor const& got, FloatTensor const& expected) {
  EXPECT_EQ(got.shape, expected.shape);
  if (got.values.size() != expected.values.size()) return INFINITY;
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < got.values.size(); ++i) {
    double const difference = static_cast<double>(got.values[i]) - expected.values[i];
    error += difference * difference;
    norm += static_cast<double>(expected.values[i]) * expected.values[i];
  }
  return std::sqrt(error / norm);
}

class Commands : public testing::Test {
 protected:
  void SetUp() override { write_tensors(input_, problem_); }
  std::string file(std::string_view name) const { return folder_.file(name); }

  TemporaryFolder folder_;
  std::vector<FloatTensor> problem_ = small_problem();
  std::string input_ = folder_.file("in.safetensors");
};

TEST_F(Commands, InfoListsEveryRecipe) {
  std::string const text = run_successfully({"info"}).out;
  json const record = json::parse(run_successfully({"info", "--json"}).out);
  EXPECT_EQ(record["version"], VCATTN_VERSION_STRING);
  ASSERT_EQ(record["recipes"].size(), all_recipes().size());
  for (std::size_t i = 0; i < all_recipes().size(); ++i) {
    EXPECT_EQ(record["recipes"][i]["name"], recipe_name(all_recipes()[i]));
    EXPECT_NE(text.find(recipe_name(all_recipes()[i])), std::string::npos);
  }
}

TEST_F(Commands, InfoSaysWhyCudaCannotBeUsed) {
  HiddenGpus const hidden;
  json const record = json::parse(run_successfully({"info", "--json"}).out);
  ASSERT_TRUE(record["cuda_built"].is_boolean());
  ASSERT_TRUE(record["cuda_usable"].is_boolean());
  std::string const note = record["cuda_note"];
  EXPECT_NE(note.find(record["cuda_built"] ? "device cuda needs a GPU" : "no CUDA kernels"), std::string::npos) << note;
  EXPECT_NE(run_successfully({"info"}).out.find("CUDA      " + note), std::string::npos);
}

TEST_F(Commands, HelpAndVersionSucceed) {
  EXPECT_EQ(run_successfully({"--version"}).out, VCATTN_VERSION_STRING "\n");
  for (char const* command : {"info", "attend", "compare", "group", "synth", "bench"}) {
    EXPECT_NE(run_successfully({"--help"}).out.find(command), std::string::npos);
    EXPECT_NE(run_successfully({command, "--help"}).out.find("--json"), std::string::npos);
  }
}

TEST_F(Commands, AttendMatchesTheTextbook) {
  for (bool const causal : {false, true}) {
    auto const [o, lse] = textbook(problem_[0], problem_[1], problem_[2], causal);
    std::vector<std::string> arguments{"attend", input_, "-o", file("out"), "--recipe", "exact", "--lse"};
    if (causal) arguments.push_back("--causal");
    run_successfully(arguments);
    EXPECT_LT(relative_error(read_tensor(file("out"), "o"), o), 1e-5);
    EXPECT_LT(relative_error(read_tensor(file("out"), "lse"), lse), 1e-5);
  }
}

TEST_F(Commands, AttendUsesTheDefaultRecipe) {
  auto const expected = textbook(problem_[0], problem_[1], problem_[2], false).first;
  run_successfully({"attend", input_, "-o", file("out")});
  double const error = relative_error(read_tensor(file("out"), "o"), expected);
  EXPECT_GT(error, 1e-4);
  EXPECT_LT(error, 0.045);  // tolerance of INT8 Q K recipes
}

TEST_F(Commands, AttendKeepsTheLayout) {
  run_successfully({"attend", input_, "-o", file("nhd")});
  std::vector<FloatTensor> swapped;
  for (FloatTensor const& tensor : problem_) swapped.push_back(swapped_axes(tensor));
  write_tensors(file("hnd.safetensors"), swapped);
  run_successfully({"attend", file("hnd.safetensors"), "-o", file("hnd"), "--layout", "hnd"});
  FloatTensor const nhd = read_tensor(file("nhd"), "o");
  EXPECT_EQ(swapped_axes(nhd).shape, read_tensor(file("hnd"), "o").shape);
  EXPECT_EQ(swapped_axes(nhd).values, read_tensor(file("hnd"), "o").values);
}

TEST_F(Commands, AttendReadsNpy) {
  for (FloatTensor const& tensor : problem_) {
    FloatTensor three = tensor;
    three.shape.erase(three.shape.begin());
    write_npy(file(tensor.name + ".npy"), three);
  }
  run_successfully({"attend", input_, "-o", file("a")});
  run_successfully({"attend", "--q", file("q.npy"), "--k", file("k.npy"), "--v", file("v.npy"), "-o", file("b")});
  EXPECT_EQ(read_tensor(file("a"), "o").shape, read_tensor(file("b"), "o").shape);
  EXPECT_EQ(read_tensor(file("a"), "o").values, read_tensor(file("b"), "o").values);

  for (FloatTensor const& tensor : problem_) {
    write_npy(file(tensor.name + "1.npy"), {tensor.name, {tensor.shape[1] * 2, 64}, tensor.values});
  }
  run_successfully({"attend", "--q", file("q1.npy"), "--k", file("k1.npy"), "--v", file("v1.npy"), "-o", file("c")});
  EXPECT_EQ(read_tensor(file("c"), "o").shape, (Shape{1, 80, 1, 64}));
}

TEST_F(Commands, AttendWritesTheAskedType) {
  run_successfully({"attend", input_, "-o", file("f32")});
  run_successfully({"attend", input_, "-o", file("bf16"), "--out-dtype", "bf16"});
  EXPECT_LT(std::filesystem::file_size(file("bf16")), std::filesystem::file_size(file("f32")) * 3 / 4);
  double const error = relative_error(read_tensor(file("bf16"), "o"), read_tensor(file("f32"), "o"));
  EXPECT_GT(error, 1e-5);
  EXPECT_LT(error, 0x1p-8);
}

TEST_F(Commands, AttendIgnoresPadding) {
  std::vector<FloatTensor> padded = problem_;
  for (std::size_t const which : {1, 2}) {
    std::fill(padded[which].values.begin() + 50 * 128, padded[which].values.end(), 1e4f);
  }
  write_tensors(file("padded"), padded);
  run_successfully({"attend", input_, "-o", file("a"), "--seqused-k", "50"});
  run_successfully({"attend", file("padded"), "-o", file("b"), "--seqused-k", "50"});
  run_successfully({"attend", input_, "-o", file("c")});
  EXPECT_EQ(read_tensor(file("a"), "o").values, read_tensor(file("b"), "o").values);
  EXPECT_NE(read_tensor(file("a"), "o").values, read_tensor(file("c"), "o").values);
}

TEST_F(Commands, AttendAppliesOverrides) {
  run_successfully({"attend", input_, "-o", file("vc8"), "--recipe", "vc8"});
  run_successfully({"attend", input_, "-o", file("emc"), "--recipe", "vc8", "--set", "emc=off"});
  run_successfully({"attend", input_, "-o", file("exp"), "--recipe", "vc8", "--set", "expcast=exp"});
  run_successfully({"attend", input_, "-o", file("vsmooth8"), "--recipe", "vsmooth8"});
  EXPECT_NE(read_tensor(file("vc8"), "o").values, read_tensor(file("emc"), "o").values);
  EXPECT_EQ(read_tensor(file("exp"), "o").values, read_tensor(file("vsmooth8"), "o").values);
}

TEST_F(Commands, AttendRecordsWhatItDid) {
  json const record = json::parse(run_successfully({"attend", input_, "-o", file("out"), "--recipe", "vc8", "--json"}).out);
  EXPECT_EQ(record["recipe"], "vc8");
  EXPECT_EQ(record["shape"]["seqlen_kv"], 72);
  EXPECT_EQ(record["options"]["expcast"], "two_line");
  run_successfully({"attend", input_, "-o", file("out"), "--recipe", "vc8", "--json", file("record")});
  EXPECT_EQ(json::parse(read_file(file("record")))["recipe"], "vc8");
}

TEST_F(Commands, NonFiniteInputsPassOnRequest) {
  problem_[0].values[0] = NAN;
  write_tensors(file("nan"), problem_);
  run_successfully({"attend", file("nan"), "-o", file("out"), "--no-check-finite"});
  FloatTensor const o = read_tensor(file("out"), "o");
  EXPECT_TRUE(std::isnan(o.values[0]));
  EXPECT_TRUE(std::isfinite(o.values[2 * 64]));
  json const record = json::parse(run_successfully({"compare", file("nan"), "--no-check-finite", "--recipes", "vc8", "--json"}).out);
  EXPECT_TRUE(record["results"][0]["rel_l2"].is_null());
}

TEST_F(Commands, GroupWritesAPermutationThatAttendAccepts) {
  Outcome const outcome = run_successfully({"group", input_, "-o", file("perm"), "--set", "clusters=8"});
  EXPECT_NE(outcome.out.find("sequence order"), std::string::npos);
  run_successfully({"attend", input_, "-o", file("a"), "--recipe", "vc8s", "--perm", file("perm")});
  run_successfully({"attend", input_, "-o", file("b"), "--recipe", "vc8s", "--set", "clusters=8"});
  EXPECT_EQ(read_tensor(file("a"), "o").values, read_tensor(file("b"), "o").values);
  json const record = json::parse(run_successfully({"group", input_, "-o", file("perm"), "--json", "--tensor", "k"}).out);
  EXPECT_EQ(record["value_energy_removed_per_head"]["grouped"].size(), 2u);
}

TEST_F(Commands, GroupIgnoresNonFinitePadding) {
  std::vector<FloatTensor> padded = problem_;
  std::fill(padded[2].values.begin() + 50 * 128, padded[2].values.end(), NAN);
  write_tensors(file("padded"), padded);
  run_successfully({"group", file("padded"), "-o", file("a"), "--seqused-k", "50"});
  run_successfully({"group", input_, "-o", file("b"), "--seqused-k", "50"});
  EXPECT_EQ(read_file(file("a")), read_file(file("b")));
}

TEST_F(Commands, GroupRefusesNothingThatIsFourDimensional) {
  write_tensors(file("layers"), {random_tensor("v_step02", {1, 300, 1, 32}, 4)});
  run_successfully({"group", file("layers"), "--tensor", "v_step02", "-o", file("perm")});
  EXPECT_EQ(read_file(file("perm")).find("\"shape\":[1,1,300]") == std::string::npos, false);
}

TEST_F(Commands, CompareWritesTheRecord) {
  run_successfully({"compare", input_, "--json", file("record")});
  json const record = json::parse(read_file(file("record")));
  EXPECT_EQ(record["input"], input_);
  EXPECT_EQ(record["shape"], json({{"batch", 1}, {"seqlen_q", 40}, {"seqlen_kv", 72}, {"num_heads", 2}, {"head_dim", 64}}));
  ASSERT_EQ(record["results"].size(), all_recipes().size());
  for (json const& result : record["results"]) {
    for (char const* key : {"recipe", "rel_l2", "snr_db", "cosine", "max_abs", "seconds", "value_energy_removed", "device", "options"}) {
      EXPECT_TRUE(result.contains(key)) << key;
    }
    EXPECT_DOUBLE_EQ(result["seconds"].get<double>(), result["prepare_seconds"].get<double>() + result["attention_seconds"].get<double>());
    EXPECT_EQ(result["device"], "cpu");
    EXPECT_TRUE(result["rel_l2"].is_number()) << result;
    EXPECT_EQ(result["value_energy_removed"].is_number(), result["options"]["v_mean"] == "on") << result;
  }
}

TEST_F(Commands, CompareMeasuresWhatAttendWrites) {
  json const record = json::parse(run_successfully({"compare", input_, "--recipes", "vc8,fp8", "--json", "-"}).out);
  auto const expected = textbook(problem_[0], problem_[1], problem_[2], false).first;
  for (json const& result : record["results"]) {
    run_successfully({"attend", input_, "-o", file("out"), "--recipe", result["recipe"].get<std::string>()});
    EXPECT_NEAR(relative_error(read_tensor(file("out"), "o"), expected), result["rel_l2"].get<double>(), 1e-5);
  }
}

TEST_F(Commands, CompareSamplesQueries) {
  json const record = json::parse(run_successfully({"compare", input_, "--recipes", "bf16", "--queries", "10", "--json"}).out);
  EXPECT_EQ(record["queries"], 10);
  EXPECT_EQ(record["shape"]["seqlen_q"], 40);
  EXPECT_LT(record["results"][0]["rel_l2"].get<double>(), 0.01);
  EXPECT_GT(record["results"][0]["rel_l2"].get<double>(), 0.0);
}

TEST_F(Commands, CompareSaysWhichRecipeCannotServe) {
  std::vector<FloatTensor> const tensors{random_tensor("q", {1, 16, 1, 40}, 1), random_tensor("k", {1, 32, 1, 40}, 2),
                                         random_tensor("v", {1, 32, 1, 40}, 3)};
  write_tensors(file("odd"), tensors);
  EXPECT_NE(run_successfully({"compare", file("odd"), "--recipes", "vc8,nvfp4"}).out.find("nvfp4      not run: "), std::string::npos);
  json const record =
      json::parse(run_successfully({"compare", file("odd"), "--recipes", "vc8,nvfp4", "--json", "--html", file("page")}).out);
  EXPECT_FALSE(record["results"][0].contains("error"));
  EXPECT_TRUE(record["results"][1]["error"].is_string());
  EXPECT_TRUE(record["results"][1]["rel_l2"].is_null());
  EXPECT_TRUE(record["results"][1]["seconds"].is_null());
  EXPECT_NE(read_file(file("page")).find("not run: "), std::string::npos);
}

TEST_F(Commands, CompareRefusesBeforeTheWorkWhereNoRecipeCanServe) {
  write_tensors(file("odd"),
                {random_tensor("q", {1, 16, 1, 40}, 1), random_tensor("k", {1, 32, 1, 40}, 2), random_tensor("v", {1, 32, 1, 40}, 3)});
  Outcome const outcome = run_program({"compare", file("odd"), "--recipes", "nvfp4,sage3"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("no recipe can serve this input: "), std::string::npos) << outcome.err;
}

TEST_F(Commands, CompareOfZeroValuesHasFiniteFigures) {
  std::ranges::fill(problem_[2].values, 0.0f);
  write_tensors(file("zero"), problem_);
  json const record = json::parse(run_successfully({"compare", file("zero"), "--recipes", "vc8,fp8", "--json"}).out);
  for (json const& result : record["results"]) {
    EXPECT_EQ(result["rel_l2"], 0.0);
    EXPECT_EQ(result["cosine"], 1.0);
    EXPECT_TRUE(result["snr_db"].is_null());
  }
}

TEST_F(Commands, ComparePageIsSelfContained) {
  std::string const input = file("a<b>&'.safetensors");
  write_tensors(input, problem_);
  run_successfully({"compare", input, "--html", file("page.html")});
  std::string const page = read_file(file("page.html"));
  for (char const* forbidden : {"http:", "https:", "src=", "<script", "@import", "url(", "<b>", "nan", "inf,"}) {
    EXPECT_EQ(page.find(forbidden), std::string::npos) << forbidden;
  }
  for (char const* required : {"Error per head", "Energy of V", "staircase", "vc8-paper", "prefers-color-scheme", "a&lt;b&gt;"}) {
    EXPECT_NE(page.find(required), std::string::npos) << required;
  }
}

TEST_F(Commands, SynthIsReproducibleAndUsable) {
  run_successfully({"synth", "-o", file("a"), "--grid", "2,6,8", "--heads", "2", "--seed", "5"});
  run_successfully({"synth", "-o", file("b"), "--grid", "2,6,8", "--heads", "2", "--seed", "5"});
  run_successfully({"synth", "-o", file("c"), "--grid", "2,6,8", "--heads", "2", "--seed", "6"});
  run_successfully({"synth", "-o", file("d"), "--grid", "2,6,8", "--heads", "2", "--seed", "5", "--rope"});
  EXPECT_EQ(read_file(file("a")), read_file(file("b")));
  EXPECT_NE(read_tensor(file("a"), "v").values, read_tensor(file("c"), "v").values);
  EXPECT_NE(read_tensor(file("a"), "q").values, read_tensor(file("d"), "q").values);
  EXPECT_EQ(read_tensor(file("a"), "v").values, read_tensor(file("d"), "v").values);
  EXPECT_EQ(read_tensor(file("a"), "q").shape, (Shape{1, 96, 2, 128}));
  run_successfully({"compare", file("a"), "--recipes", "vc8s"});
}

TEST_F(Commands, BenchReportsSpeedAndAccuracy) {
  json const record =
      json::parse(run_successfully({"bench", "--shape", "1,200,150,2,64", "--recipes", "exact,vc8s", "--repeats", "2", "--json"}).out);
  ASSERT_EQ(record["results"].size(), 2u);
  for (json const& result : record["results"]) {
    EXPECT_EQ(result["attention"]["samples_seconds"].size(), 2u);
    EXPECT_EQ(result["attention"]["calls_per_sample"], 1);
    EXPECT_EQ(result["prepare"]["samples_seconds"].size(), 2u);
    EXPECT_GT(result["prepare+attention"]["tflops"].get<double>(), 0.0);
    EXPECT_LT(result["rel_l2"].get<double>(), 0.045);
  }
  for (char const* key : {"cpu_model", "isa", "threads", "version", "compiler"}) EXPECT_TRUE(record.contains(key));
  EXPECT_NE(run_successfully({"bench", "--list"}).out.find("4096x4x128"), std::string::npos);
}

TEST_F(Commands, ProgressGoesToATerminalOnly) {
  run_successfully({"synth", "-o", file("a"), "--grid", "20,40,40"});
  Outcome const outcome = run_program_on_terminal({"synth", "-o", file("a"), "--grid", "40,60,60", "--heads", "2"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_NE(outcome.err.find("frames"), std::string::npos);
}

}  // namespace
}  // namespace vcattn::test
