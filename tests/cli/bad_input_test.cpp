// Bad input: exit code != 0, one line on stderr, nothing left behind.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "cli/program.hpp"
#include "cli/temporary_folder.hpp"
#include "cli/tensor_files.hpp"

namespace vcattn::test {
namespace {

class BadInput : public testing::Test {
 protected:
  void SetUp() override { write_tensors(good_, small_problem()); }

  std::string file(std::string_view name) const { return folder_.file(name); }

  /// Runs the program and expects a refusal that says `message` and leaves the folder as it was.
  void expect_refusal(std::vector<std::string> const& arguments, std::string const& message) {
    auto const before = folder_.names();
    Outcome const outcome = run_program(arguments);
    EXPECT_GT(outcome.exit_code, 0);
    EXPECT_LT(outcome.exit_code, 128) << "ended by a signal";
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with("vcattn: error: ")) << outcome.err;
    EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(folder_.names(), before);
  }

  /// The same for attend, compare and group, as far as they read all three tensors.
  void expect_input_refused(std::string const& input, std::string const& message) {
    expect_refusal({"attend", input, "-o", file("out")}, message);
    expect_refusal({"compare", input, "--json", file("j"), "--html", file("h")}, message);
  }

  /// File with the small problem after a change of its tensors.
  template <typename Change>
  std::string changed(Change change) {
    auto tensors = small_problem();
    change(tensors);
    write_tensors(file("changed"), tensors);
    return file("changed");
  }

  TemporaryFolder folder_;
  std::string good_ = folder_.file("good");
};

TEST_F(BadInput, MissingFile) {
  expect_input_refused(file("absent"), "No such file");
  expect_refusal({"group", file("absent"), "-o", file("out")}, "No such file");
}

TEST_F(BadInput, FolderAsInput) { expect_input_refused(folder_.file("."), "regular file"); }

TEST_F(BadInput, TruncatedAtEveryKindOfPlace) {
  std::string const bytes = read_file(good_);
  for (std::size_t const length : {std::size_t{0}, std::size_t{5}, std::size_t{8}, std::size_t{40}, bytes.size() / 2, bytes.size() - 1}) {
    write_file(file("cut"), bytes.substr(0, length));
    expect_input_refused(file("cut"), "safetensors");
    expect_refusal({"group", file("cut"), "-o", file("out")}, "safetensors");
  }
}

TEST_F(BadInput, NotASafetensorsFile) {
  write_file(file("text"), "this is a text file and not a container of tensors\n");
  expect_input_refused(file("text"), "safetensors");
}

TEST_F(BadInput, MissingTensor) {
  expect_input_refused(changed([](auto& tensors) { tensors.pop_back(); }), "tensor 'v' required");
  expect_refusal({"group", good_, "-o", file("out"), "--tensor", "values"}, "tensor 'values' required");
}

TEST_F(BadInput, WrongDtype) {
  write_permutation(file("integers"), {1, 2, 72}, std::vector<std::int32_t>(144));
  expect_refusal({"group", file("integers"), "-o", file("out"), "--tensor", "perm"}, "must be BF16, F16 or F32");
}

TEST_F(BadInput, WrongRank) {
  expect_input_refused(changed([](auto& tensors) { tensors[0].shape = {40, 2, 64}; }), "4 dimensions");
}

TEST_F(BadInput, ShapeMismatches) {
  expect_input_refused(changed([](auto& tensors) { tensors[1] = random_tensor("k", {1, 71, 2, 64}, 1); }), "");
  expect_input_refused(changed([](auto& tensors) { tensors[1] = random_tensor("k", {1, 72, 2, 32}, 1); }), "");
  expect_input_refused(changed([](auto& tensors) { tensors[0] = random_tensor("q", {2, 40, 2, 64}, 1); }), "");
  expect_input_refused(changed([](auto& tensors) { tensors[0] = random_tensor("q", {1, 40, 3, 64}, 1); }), "");
}

TEST_F(BadInput, HeadDimOutOfRange) {
  for (std::int64_t const head_dim : {0, 7, 8, 264}) {
    expect_input_refused(changed([head_dim](auto& tensors) {
                           for (FloatTensor& tensor : tensors) tensor = random_tensor(tensor.name, {1, 16, 1, head_dim}, 1);
                         }),
                         "head_dim");
  }
}

TEST_F(BadInput, NonFiniteValues) {
  for (std::size_t const which : {0, 1, 2}) {
    for (float const value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      std::string const input = changed([which, value](auto& tensors) { tensors[which].values[100] = value; });
      expect_input_refused(input, "--no-check-finite");
      if (which == 2) expect_refusal({"group", input, "-o", file("out")}, "finite");
    }
  }
}

TEST_F(BadInput, AbsurdShapesWithoutElements) {
  for (char const* shape : {"1,4611686018427387904,0,64", "1,0,4611686018427387904,64", "4611686018427387904,0,1,64", "1,5000000000,0,64",
                            "1,64,1,0", "1,0,1099511627776,64", "0,4611686018427387904,4611686018427387904,64"}) {
    std::string header = "{";
    for (char const* name : {"q", "k", "v"}) {
      header +=
          (header.size() > 1 ? ",\"" : "\"") + std::string(name) + R"(":{"dtype":"F32","shape":[)" + shape + R"(],"data_offsets":[0,0]})";
    }
    header += "}";
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(header.size() & 0xFF);
    bytes[1] = static_cast<char>(header.size() >> 8);
    write_file(file("absurd"), bytes + header);
    expect_refusal({"group", file("absurd"), "-o", file("out")}, "");
  }
}

TEST_F(BadInput, OneFileForTwoRoles) {
  std::string const x = file("x");
  for (std::string const& other : {x, file("./x"), good_}) {
    std::string const& first = other == good_ ? good_ : x;
    expect_refusal({"attend", good_, "-o", first, "--json", other}, "name the same file");
    expect_refusal({"group", good_, "-o", first, "--json", other}, "name the same file");
    expect_refusal({"compare", good_, "--html", first, "--json", other}, "name the same file");
    expect_refusal({"synth", "-o", first, "--json", other, "--grid", "1,2,2"}, "name the same file");
  }
  expect_refusal({"attend", good_, "-o", good_}, "name the same file");
  expect_refusal({"attend", good_, "--perm", x, "-o", x}, "--perm and --output");
}

TEST_F(BadInput, EmptyOptionValues) {
  for (char const* option : {"--perm", "--seqused-k", "--set", "--recipe", "--out-dtype", "--json"}) {
    expect_refusal({"attend", good_, "-o", file("out"), option, ""}, std::string(option) + ": a value required");
    expect_refusal({"attend", good_, "-o", file("out"), std::string(option) + "="}, std::string(option) + ": a value required");
  }
  expect_refusal({"compare", good_, "--html", ""}, "--html");
  expect_refusal({"compare", good_, "--recipes", ""}, "--recipes");
  expect_refusal({"bench", "--shape", ""}, "--shape");
  expect_refusal({""}, "a value required");
}

TEST_F(BadInput, UnwritableOutputs) {
  for (std::string const& target : {file("no/such/folder/out"), folder_.file("."), std::string("/proc/out"), std::string("")}) {
    expect_refusal({"attend", good_, "-o", target}, "");
    expect_refusal({"group", good_, "-o", target}, "");
    expect_refusal({"synth", "-o", target, "--grid", "1,2,2"}, "");
    expect_refusal({"compare", good_, "--html", target.empty() ? file("no/such/folder/h") : target}, "cannot write");
    expect_refusal({"compare", good_, "--json", target.empty() ? file("no/such/folder/j") : target}, "cannot write");
  }
}

TEST_F(BadInput, FullDevice) {
  expect_refusal({"attend", good_, "-o", "/dev/full"}, "No space left");
  Outcome const outcome = run_program({"attend", good_, "-o", file("out"), "--json", "/dev/full"});
  EXPECT_GT(outcome.exit_code, 0);
  EXPECT_EQ(folder_.names(), std::vector<std::string>{"good"});
}

TEST_F(BadInput, NothingIsPrintedBeforeABadRecordTarget) {
  expect_refusal({"bench", "--list", "--json", file("no/such/folder/j")}, "cannot write");
  expect_refusal({"info", "--json", file("no/such/folder/j")}, "cannot write");
}

TEST_F(BadInput, SizeLimitIsAnError) {
  EXPECT_EQ(run_in_shell("ulimit -f 8; \"$@\" 2>/dev/null", {"synth", "-o", file("out"), "--grid", "4,16,16"}), 1);
  EXPECT_EQ(folder_.names(), std::vector<std::string>{"good"});
}

TEST_F(BadInput, SignalsLeaveNothingBehind) {
  for (std::string const signal : {"HUP", "TERM"}) {
    std::string const script = "\"$@\" 2>/dev/null & while [ -z \"$(ls -A '" + file(".") +
                               "' | grep tmp)\" ]; do sleep 0.05; done; kill -" + signal + " $!; wait $!";
    EXPECT_GT(run_in_shell(script, {"bench", "--case", "hunyuan15-720p", "--threads", "1", "--json", file("record")}), 128) << signal;
    EXPECT_EQ(folder_.names(), std::vector<std::string>{"good"});
  }
}

TEST_F(BadInput, ClosedPipeIsAnError) {
  EXPECT_EQ(run_in_shell("{ sleep 0.2; \"$@\" 2>/dev/null; echo $? > '" + file("code") + "'; } | true", {"info"}), 0);
  EXPECT_EQ(read_file(file("code")), "1\n");
}

TEST_F(BadInput, ClosedStandardStreams) {
  EXPECT_EQ(run_in_shell("\"$@\" <&- >&- 2>&-", {"attend", good_, "-o", file("closed")}), 0);
  EXPECT_EQ(run_program({"attend", good_, "-o", file("open")}).exit_code, 0);
  EXPECT_EQ(read_file(file("closed")), read_file(file("open")));
  EXPECT_EQ(run_in_shell("\"$@\" <&- >&- 2>&-", {"attend", file("absent"), "-o", file("out")}), 1);
  EXPECT_EQ(run_in_shell("\"$@\" 2>/dev/full", {"attend", file("absent"), "-o", file("out")}), 1);
}

TEST_F(BadInput, OptionValues) {
  std::string const out = file("out");
  expect_refusal({"attend", good_, "-o", out, "--recipe", "vc9"}, "vc9");
  expect_refusal({"attend", good_, "-o", out, "--layout", "dhn"}, "--layout");
  expect_refusal({"attend", good_, "-o", out, "--out-dtype", "f8"}, "--out-dtype");
  expect_refusal({"attend", good_, "-o", out, "--device", "tpu"}, "--device");
  expect_refusal({"attend", good_, "-o", out, "--prepare-on", "tpu"}, "--prepare-on");
  for (std::string const command : {"attend", "compare", "bench"}) {
    std::vector<std::string> arguments{command, "--device", "cpu", "--prepare-on", "cuda"};
    if (command != "bench") arguments.push_back(good_);
    if (command == "attend") arguments.insert(arguments.end(), {"-o", out});
    expect_refusal(arguments, "--prepare-on: cpu required with --device cpu");
  }
  expect_refusal({"attend", good_, "-o", out, "--threads", "many"}, "--threads");
  expect_refusal({"attend", good_, "-o", out, "--threads", "-1"}, "--threads");
  expect_refusal({"attend", good_, "-o", out, "--set", "expcast=three_line"}, "three_line");
  expect_refusal({"attend", good_, "-o", out, "--set", "colour=red"}, "colour");
  expect_refusal({"attend", good_, "-o", out, "--set", "block"}, "block");
  expect_refusal({"attend", good_, "-o", out, "--set", "block=48"}, "48");
  expect_refusal({"attend", good_, "-o", out, "--set", "top=999"}, "999");
  expect_refusal({"attend", good_, "-o", out, "--seqused-k", "73"}, "--seqused-k");
  expect_refusal({"attend", good_, "-o", out, "--seqused-k", "1,2"}, "--seqused-k");
  expect_refusal({"attend", good_, "-o", out, "--seqused-k", "x"}, "--seqused-k");
  expect_refusal({"compare", good_, "--recipes", "vc8,,fp8"}, "--recipes");
  expect_refusal({"compare", good_, "--recipes", "vc8,best"}, "best");
  expect_refusal({"compare", good_, "--queries", "-4"}, "--queries");
  expect_refusal({"compare", good_, "--queries", "8", "--causal"}, "--queries");
  expect_refusal({"synth", "-o", out, "--grid", "1,2"}, "--grid");
  expect_refusal({"synth", "-o", out, "--grid", "1,0,2"}, "--grid");
  expect_refusal({"synth", "-o", out, "--grid", "65536,65536,65536"}, "--grid");
  expect_refusal({"synth", "-o", out, "--grid", "1,2,2", "--head-dim", "12"}, "--head-dim");
  expect_refusal({"synth", "-o", out, "--grid", "1,2,2", "--heads", "0"}, "--heads");
  expect_refusal({"bench", "--shape", "1,2,3"}, "--shape");
  expect_refusal({"bench", "--shape", "1,16,16,1,7"}, "head_dim");
  expect_refusal({"bench", "--case", "unknown"}, "--case");
  expect_refusal({"bench", "--case", "4096x4x128", "--shape", "1,2,3,4,64"}, "--shape");
  expect_refusal({"bench", "--shape", "1,16,16,1,64", "--repeats", "x"}, "--repeats");
}

TEST_F(BadInput, CudaWithoutAUsableGpu) {
  HiddenGpus const hidden;
  for (std::string const& input : {good_, file("absent")}) {  // before any work: not even the input is opened
    expect_refusal({"attend", input, "-o", file("out"), "--device", "cuda"}, "use device cpu");
    expect_refusal({"attend", input, "-o", file("out"), "--device", "cuda", "--prepare-on", "cpu"}, "use device cpu");
    expect_refusal({"group", input, "-o", file("out"), "--device", "cuda"}, "use device cpu");
    expect_refusal({"compare", input, "--device", "cuda"}, "use device cpu");
    expect_refusal({"compare", input, "--device", "cuda", "--recipes", "exact", "--html", file("h"), "--json", file("j")},
                   "use device cpu");
  }
  expect_refusal({"bench", "--device", "cuda"}, "use device cpu");
  // more memory than any machine has
  expect_refusal({"bench", "--device", "cuda", "--shape", "4096,1048576,1048576,64,128", "--json", file("j")}, "use device cpu");
}

TEST_F(BadInput, DevicesOfGroup) { expect_refusal({"group", good_, "-o", file("out"), "--device", "tpu"}, "--device"); }

TEST_F(BadInput, OptionNames) {
  expect_refusal({}, "subcommand is required");
  expect_refusal({"atend", good_}, "'atend'");
  expect_refusal({"--verbose"}, "'--verbose'");
  expect_refusal({"attend", good_}, "--output");
  expect_refusal({"attend", good_, "-o", file("out"), "--recipes", "vc8"}, "--recipes");
  expect_refusal({"attend", good_, good_, "-o", file("out")}, "");
  expect_refusal({"attend", "-o", file("out")}, "IN.safetensors");
  expect_refusal({"attend", "-o", file("out"), "--q", "a.npy", "--k", "b.npy"}, "--v");
  expect_refusal({"attend", good_, "-o", file("out"), "--q", "a.npy", "--k", "b.npy", "--v", "c.npy"}, "either");
  expect_refusal({"group", "-o", file("out")}, "IN.safetensors");
  expect_refusal({"synth", "-o", file("out")}, "--grid");
}

TEST_F(BadInput, Permutations) {
  std::vector<std::int32_t> identity(72);
  std::iota(identity.begin(), identity.end(), 0);
  std::vector<std::int32_t> both = identity;
  both.insert(both.end(), identity.begin(), identity.end());
  auto const expect_bad = [&](Shape const& shape, std::vector<std::int32_t> const& values, std::string const& message) {
    write_permutation(file("perm"), shape, values);
    expect_refusal({"attend", good_, "-o", file("out"), "--perm", file("perm")}, message);
  };
  expect_bad({1, 1, 72}, identity, "perm must be I32 [1, 2, 72]");
  expect_bad({2, 72}, both, "perm must be I32");
  for (std::int32_t const wrong : {72, -1, 3}) {  // 3 occurs twice then
    std::vector<std::int32_t> damaged = both;
    damaged[100] = wrong;
    expect_bad({1, 2, 72}, damaged, "once");
  }
  expect_refusal({"attend", good_, "-o", file("out"), "--perm", good_}, "tensor 'perm' required");
  expect_refusal({"attend", good_, "-o", file("out"), "--perm", file("absent")}, "No such file");

  write_permutation(file("perm"), {1, 2, 72}, both);
  std::vector<std::int32_t> reversed(both.rbegin(), both.rend());
  write_permutation(file("perm"), {1, 2, 72}, reversed);  // padding would come first
  expect_refusal({"attend", good_, "-o", file("out"), "--perm", file("perm"), "--seqused-k", "40"}, "40 valid keys");
}

TEST_F(BadInput, NpyFiles) {
  write_npy(file("q.npy"), random_tensor("q", {40, 64}, 1));
  write_npy(file("k.npy"), random_tensor("k", {72, 64}, 2));
  write_npy(file("line.npy"), random_tensor("v", {72}, 3));
  std::vector<std::string> const start{"attend", "-o", file("out"), "--q", file("q.npy"), "--k", file("k.npy"), "--v"};
  auto const with_v = [&](std::string const& v) {
    std::vector<std::string> arguments = start;
    arguments.push_back(v);
    return arguments;
  };
  expect_refusal(with_v(file("line.npy")), "2 to 4 dimensions");
  expect_refusal(with_v(good_), "magic");
  expect_refusal(with_v(file("absent.npy")), "No such file");
  write_file(file("cut.npy"), read_file(file("k.npy")).substr(0, 500));
  expect_refusal(with_v(file("cut.npy")), "truncated");
}

}  // namespace
}  // namespace vcattn::test
