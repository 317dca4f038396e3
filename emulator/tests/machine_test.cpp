// The machine: control flow, lanes together, memory, barriers, copies, and its reports.

#include <gtest/gtest.h>

#include <numeric>
#include <sstream>

#include "emulator/fault.hpp"
#include "emulator/tests/program.hpp"
#include "emulator/traffic.hpp"

namespace vcattn::emulator {
namespace {

/// What the emulator reports, empty if nothing.
std::string fault_of(Program program, std::string const& body) {
  try {
    (void)program.run(body);
  } catch (Fault const& fault) {
    return fault.what();
  }
  return "";
}
std::string load_error(std::string const& text) {
  try {
    (void)load_module(text);
  } catch (LoadError const& error) {
    return error.what();
  }
  return "";
}
testing::AssertionResult has(std::string const& text, std::string const& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "\"" << text << "\" does not contain \"" << part << "\"";
}

std::vector<std::uint32_t> iota(std::size_t count) {
  std::vector<std::uint32_t> words(count);
  std::iota(words.begin(), words.end(), 0u);
  return words;
}

constexpr char const* kStoreR0 = "  st.global.u32 [%rd1], %r0;\n";
constexpr char const* kLoadA = "  ld.global.u32 %r1, [%rd2];\n";

TEST(Loader, RefusesWhatItDoesNotKnow) {
  EXPECT_TRUE(has(load_error(kernel_text("  sin.approx.f32 %f0, %f1;\n")), "the emulator does not know sin.approx.f32"));
  EXPECT_TRUE(has(load_error(kernel_text("  sin.approx.f32 %f0, %f1;\n")), "PTX line 25"));
  EXPECT_TRUE(has(load_error(kernel_text("  add.s32 %r0, %rd1, 1;\n")), "operands of add.s32 %r0, %rd1, 1"));
  EXPECT_TRUE(has(load_error(kernel_text("  bra $nowhere;\n")), "unknown label or symbol $nowhere"));
  EXPECT_TRUE(has(load_error(".version 9.0\n.const .b8 table[4];\n"), ".const"));
}

/// Lane n goes n times round a loop.
TEST(ControlFlow, LanesLeaveALoopOneByOne) {
  Program program;
  program.a = iota(32);
  for (program.seed = 1; program.seed < 9; ++program.seed) {
    auto const out = program.run(std::string(kLoadA) + R"(  mov.u32 %r0, 0;
$loop:
  setp.eq.s32 %p0, %r1, 0;
  @%p0 bra $end;
  add.s32 %r0, %r0, %r1;
  add.s32 %r1, %r1, -1;
  bra.uni $loop;
$end:
  bar.warp.sync -1;
)" + kStoreR0);
    for (std::uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], i * (i + 1) / 2);
  }
}

TEST(ControlFlow, NestedBranchesMeetBeforeAShuffle) {
  Program program;
  program.a = iota(32);
  for (program.seed = 1; program.seed < 9; ++program.seed) {
    auto const out = program.run(std::string(kLoadA) + R"(  mov.u32 %r0, 100;
  setp.lt.s32 %p0, %r1, 16;
  @%p0 bra $low;
  mov.u32 %r0, 300;
  bra.uni $meet;
$low:
  and.b32 %r2, %r1, 1;
  setp.eq.s32 %p1, %r2, 0;
  @%p1 bra $meet;
  mov.u32 %r0, 200;
$meet:
  shfl.sync.bfly.b32 %r0|%p2, %r0, 1, 31, -1;
)" + kStoreR0);
    for (std::uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], i >= 16 ? 300u : i % 2 == 0 ? 200u : 100u) << i;
  }
}

TEST(ControlFlow, SomeLanesReturn) {
  Program program;
  program.a = iota(32);
  auto const out = program.run(std::string(kLoadA) + "  setp.gt.s32 %p0, %r1, 4;\n  @%p0 ret;\n  mov.u32 %r0, 7;\n" + kStoreR0);
  for (std::uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], i > 4 ? 0xDDDDDDDDu : 7u);
}

TEST(Lanes, Shuffles) {
  Program program;
  program.a = iota(32);
  auto const up = program.run(std::string(kLoadA) + "  shfl.sync.up.b32 %r0|%p0, %r1, 3, 0, -1;\n  @!%p0 mov.u32 %r0, 99;\n" + kStoreR0);
  auto const idx = program.run(std::string(kLoadA) + "  shfl.sync.idx.b32 %r0|%p0, %r1, 5, 31, -1;\n" + kStoreR0);
  auto const quad = program.run(std::string(kLoadA) + "  shfl.sync.idx.b32 %r0|%p0, %r1, 1, 7199, -1;\n" + kStoreR0);  // 4 lanes each
  for (std::uint32_t i = 0; i < 32; ++i) {
    EXPECT_EQ(up[i], i < 3 ? 99u : i - 3);
    EXPECT_EQ(idx[i], 5u);
    EXPECT_EQ(quad[i], i / 4 * 4 + 1);
  }
}

TEST(Lanes, VotesAndReductions) {
  Program program;
  program.a = iota(32);
  std::string const compare = std::string(kLoadA) + "  setp.lt.s32 %p0, %r1, 9;\n";
  EXPECT_EQ(program.run(compare + "  vote.sync.ballot.b32 %r0, %p0, -1;\n" + kStoreR0)[31], 0x1FFu);
  EXPECT_EQ(program.run(compare + "  vote.sync.any.pred %p1, %p0, -1;\n  selp.u32 %r0, 1, 0, %p1;\n" + kStoreR0)[31], 1u);
  EXPECT_EQ(program.run(std::string(kLoadA) + "  redux.sync.add.u32 %r0, %r1, -1;\n" + kStoreR0)[3], 496u);
  EXPECT_EQ(program.run(std::string(kLoadA) + "  redux.sync.max.u32 %r0, %r1, -1;\n" + kStoreR0)[3], 31u);
}

TEST(Lanes, AbsentLanesAreReported) {
  EXPECT_TRUE(has(fault_of({iota(32), {}, {}}, std::string(kLoadA) + R"(  setp.lt.s32 %p0, %r1, 16;
  @%p0 bra $meet;
  vote.sync.ballot.b32 %r0, %p0, -1;
$meet:
)" + kStoreR0),
                  "vote.sync waits for lane 0, which is elsewhere"));
}

TEST(Memory, GlobalFaults) {
  EXPECT_TRUE(has(fault_of({}, "  ld.global.u32 %r0, [%rd2+128];\n"), "is outside of all memory"));
  EXPECT_TRUE(has(fault_of({}, "  ld.global.u32 %r0, [%rd2+2];\n"), "is not aligned to 4 bytes"));
  EXPECT_TRUE(has(fault_of({}, "  ld.global.u32 %r0, [%rd1];\n"), "never written, out+0"));
  EXPECT_TRUE(has(fault_of({}, "  st.global.u32 [%rd2], %r30;\n"), "read-only a"));
  EXPECT_TRUE(has(fault_of({}, "  ld.param.u32 %r0, [params+32];\n"), "parameter+32 of 32"));
}

TEST(Memory, SharedFaults) {
  Program program;
  program.shared_bytes = 128;
  program.names = {{64, 64, "row"}};
  // What was never written may be read and computed with, but not used.
  std::string const unwritten = "  ld.shared.u32 %r0, [smem+68];\n  add.s32 %r2, %r0, 1;\n",
                    report = "shared read of row+4, which was never written";
  EXPECT_EQ(fault_of(program, unwritten + "  selp.u32 %r0, 1, %r2, %p1;\n  mov.u32 %r2, 0;\n"), "");
  EXPECT_TRUE(has(fault_of(program, unwritten + "  st.global.u32 [%rd1], %r2;\n"), report));
  EXPECT_TRUE(has(fault_of(program, unwritten + "  setp.eq.s32 %p0, %r2, 0;\n  @%p0 bra $l;\n$l:\n"), report));
  EXPECT_TRUE(has(fault_of(program, unwritten + "  cvt.u64.u32 %rd5, %r2;\n  ld.global.u32 %r3, [%rd5];\n"), report));
  EXPECT_TRUE(has(fault_of(program, "  st.shared.u32 [smem+128], %r30;\n"), "outside of the 128 bytes"));
  EXPECT_TRUE(has(fault_of(program, "  mbarrier.init.shared.b64 [smem], 1;\n"), "second mbarrier.init"));  // all lanes
}

/// Warps exchange words through shared memory.
TEST(Barriers, CtaBarrierOrdersWarps) {
  Program program;
  program.threads = 128;
  program.shared_bytes = 512;
  program.a = iota(128);
  std::string const write = std::string(kLoadA) + R"(  mov.u32 %r2, smem;
  shl.b32 %r3, %r30, 2;
  add.s32 %r4, %r2, %r3;
  st.shared.u32 [%r4], %r1;
)";
  std::string const read = R"(  xor.b32 %r5, %r3, 508;
  add.s32 %r5, %r2, %r5;
  ld.shared.u32 %r0, [%r5];
)" + std::string(kStoreR0);
  int reported = 0;
  for (program.seed = 1; program.seed <= 10; ++program.seed) {
    auto const out = program.run(write + "  bar.sync 0;\n" + read);
    for (std::uint32_t i = 0; i < 128; ++i) ASSERT_EQ(out[i], 127 - i);
    std::string const fault = fault_of(program, write + read);
    if (has(fault, "never written") || has(fault, "without a barrier in between")) ++reported;
  }
  EXPECT_EQ(reported, 10);
}

// One thread copies 128 bytes of a into shared memory; all wait for it.
constexpr char const* kCopyBegin = R"(  setp.eq.s32 %p0, %r30, 0;
  mov.u32 %r2, smem;
  @!%p0 bra $started;
  mbarrier.init.shared.b64 [smem+128], 1;
)";
constexpr char const* kCopyEnd = R"(  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd2], 128, [%r6];
$started:
  bar.warp.sync -1;
)";
constexpr char const* kFence = "  fence.mbarrier_init.release.cluster;\n  add.s32 %r6, %r2, 128;\n";
constexpr char const* kExpect = "  mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %rd9, [%r6], 128;\n";
constexpr char const* kWait = R"($wait:
  mbarrier.try_wait.parity.shared::cta.b64 %p1, [smem+128], 0;
  @!%p1 bra $wait;
)";
constexpr char const* kReadCopy = "  shl.b32 %r3, %r30, 2;\n  add.s32 %r4, %r2, %r3;\n  ld.shared.u32 %r0, [%r4];\n";

TEST(Copies, ArriveAndFaults) {
  Program program;
  program.shared_bytes = 136;
  program.names = {{128, 8, "full"}};
  program.a = iota(32);
  std::string const begin = kCopyBegin, end = kCopyEnd, fence = kFence, expect = kExpect, wait = kWait,
                    read = kReadCopy + std::string(kStoreR0);
  int unwaited = 0;
  for (program.seed = 1; program.seed <= 10; ++program.seed) {
    EXPECT_EQ(program.run(begin + fence + expect + end + wait + read), program.a);
    std::string const fault = fault_of(program, begin + fence + expect + end + read);
    if (has(fault, "which a copy is filling") || has(fault, "without a wait for its barrier")) ++unwaited;
    EXPECT_TRUE(has(fault_of(program, begin + "  add.s32 %r6, %r2, 128;\n" + expect + end + wait + read),
                    "barrier full, which no fence made visible"));
    EXPECT_TRUE(has(fault_of(program, begin + fence + expect + expect + end + wait + read), "one arrival too many at full"));
    std::string const deadlock = fault_of(
        program, begin + fence + "  mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %rd9, [%r6], 144;\n" + end + wait + read);
    EXPECT_TRUE(has(deadlock, "deadlock"));
    EXPECT_TRUE(has(deadlock, "waits for barrier full (phase 0, 0 of 1 arrivals and 16 bytes missing)"));
    EXPECT_TRUE(has(fault_of(program, begin + fence + expect + end), "before its copies"));
  }
  EXPECT_EQ(unwaited, 10);
}

/// Each thread copies a word of a into shared memory.
TEST(Copies, OfThreads) {
  Program program;
  program.shared_bytes = 256;
  program.a = iota(32);
  std::string const start = R"(  mov.u32 %r2, smem;
  shl.b32 %r3, %r30, 2;
  add.s32 %r4, %r2, %r3;
  cp.async.ca.shared.global [%r4], [%rd2], 4;
  cp.async.commit_group;
)";
  std::string const wait = "  cp.async.wait_group 0;\n", read = "  ld.shared.u32 %r0, [%r4];\n" + std::string(kStoreR0);
  EXPECT_EQ(program.run(start + wait + read), program.a);
  EXPECT_TRUE(has(fault_of(program, start + read), "which a copy is filling"));
  EXPECT_TRUE(has(fault_of(program, start + "  cp.async.wait_group 1;\n" + read), "which a copy is filling"));
  EXPECT_TRUE(has(fault_of(program, start + start + wait + read), "which a copy is filling"));
  std::string const none = "  mov.u32 %r2, smem;\n  cp.async.cg.shared.global [%r2+128], [%rd1+1], 16, 0;\n";  // zeros; no address is read
  EXPECT_TRUE(has(fault_of(program, none), "which a copy is filling"));                                        // by all lanes
  EXPECT_EQ(fault_of(program, "  setp.eq.s32 %p0, %r30, 0;\n  @!%p0 bra $l;\n" + none + "$l:\n"), "");
}

/// All warps add to one word; a plain read needs a barrier.
TEST(Atomics, NeedNoOrderAmongThemselves) {
  Program program;
  program.threads = 128;
  program.shared_bytes = 16;
  std::string const clear = "  setp.eq.s32 %p0, %r30, 0;\n  @%p0 st.shared.u32 [smem], 0;\n", barrier = "  bar.sync 0;\n";
  std::string const add = "  mov.u32 %r2, smem;\n  atom.shared.add.u32 %r3, [%r2], 1;\n";
  std::string const read = "  ld.shared.u32 %r0, [smem];\n" + std::string(kStoreR0);
  for (program.seed = 1; program.seed <= 5; ++program.seed) {
    EXPECT_EQ(program.run(clear + barrier + add + barrier + read), std::vector<std::uint32_t>(128, 128u));
    std::string const fault = fault_of(program, clear + add);
    EXPECT_TRUE(has(fault, "never written") || has(fault, "without a barrier in between")) << fault;
    EXPECT_TRUE(has(fault_of(program, clear + barrier + add + read), "without a barrier in between"));
  }
}

TEST(Barriers, ReducePredicates) {
  Program program;
  program.threads = 96;
  std::string const vote = "  setp.eq.s32 %p0, %r30, %r1;\n  bar.red.or.pred %p1, 0, %p0;\n  selp.u32 %r0, 1, 0, %p1;\n";
  EXPECT_EQ(program.run("  mov.u32 %r1, 70;\n" + vote + kStoreR0), std::vector<std::uint32_t>(96, 1u));
  EXPECT_EQ(program.run("  mov.u32 %r1, 96;\n" + vote + kStoreR0), std::vector<std::uint32_t>(96, 0u));
}

TEST(Products, OfInt8ThatWereNeverWritten) {
  Program program;
  program.shared_bytes = 512;
  std::string const load =
      "  mov.u32 %r2, smem;\n  shl.b32 %r3, %r30, 4;\n  add.s32 %r2, %r2, %r3;\n"
      "  ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r7}, [%r2];\n";
  auto const product = [](std::string const& b) {
    return "  mov.u32 %r8, " + b +
           ";\n  mov.u32 %r0, 5;\n  mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r0, %r9, %r10, %r11}, "
           "{%r4, %r5, %r6, %r7}, {%r8, %r8}, {%r0, %r0, %r0, %r0};\n";
  };
  EXPECT_EQ(program.run(load + product("0") + kStoreR0), std::vector<std::uint32_t>(32, 5u));
  EXPECT_TRUE(has(fault_of(program, load + product("1") + kStoreR0), "which was never written"));
}

TEST(Functions, AreInlined) {
  std::string text = kernel_text(R"(  { // callseq
  .param .b32 param0;
  st.param.b32 [param0+0], %r30;
  .param .b32 retval0;
  call.uni (retval0), twice, (param0);
  ld.param.b32 %r0, [retval0+0];
  }
  { // callseq
  .param .b32 param0;
  st.param.b32 [param0+0], %r0;
  .param .b32 retval0;
  call.uni (retval0), twice, (param0);
  ld.param.b32 %r0, [retval0+0];
  }
  st.global.u32 [%rd1], %r0;
)");
  text += R"(.func (.param .b32 func_retval0) twice(
  .param .b32 twice_param_0
)
{
  .reg .b32 %r<3>;
  .reg .pred %p<2>;
  ld.param.u32 %r1, [twice_param_0];
  setp.gt.s32 %p1, %r1, 9;
  st.param.b32 [func_retval0+0], %r1;
  @%p1 ret;
  add.s32 %r2, %r1, %r1;
  st.param.b32 [func_retval0+0], %r2;
  ret;
}
)";
  std::vector<std::uint32_t> out(32);
  GlobalMemory global;
  global.add(out.data(), out.size() * 4, "out", Access::read_write, false);
  void const* const pointers[4] = {out.data(), nullptr, nullptr, nullptr};
  std::uint8_t parameters[32];
  std::memcpy(parameters, pointers, sizeof parameters);
  (void)launch(load_module(text), "kernel", {{1}, {32}}, parameters, global);
  for (std::uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], i > 9 ? i : 2 * i > 9 ? 2 * i : 4 * i);
}

TEST(Counters, BankConflictsAndSectors) {
  auto const conflicts = [](std::uint64_t stride, std::uint32_t bytes) {
    std::uint64_t addresses[kLanes];
    for (std::uint64_t lane = 0; lane < kLanes; ++lane) addresses[lane] = 1024 + lane * stride;
    Counters counters;
    count_access(counters, Level::shared, addresses, kAllLanes, bytes, false);
    EXPECT_EQ(counters.shared.read_bytes, 32u * bytes);
    return counters.shared_bank_conflicts;
  };
  EXPECT_EQ(conflicts(4, 4), 0u);
  EXPECT_EQ(conflicts(0, 4), 0u);  // one word for all
  EXPECT_EQ(conflicts(8, 4), 1u);
  EXPECT_EQ(conflicts(128, 4), 31u);
  EXPECT_EQ(conflicts(16, 16), 0u);
  EXPECT_EQ(conflicts(32, 16), 4u);
  std::uint64_t addresses[kLanes];
  for (std::uint64_t lane = 0; lane < kLanes; ++lane) addresses[lane] = 16 + 4 * lane;
  Counters counters;
  count_access(counters, Level::global, addresses, kAllLanes, 4, true);
  EXPECT_EQ(counters.global_sectors, 5u);
  EXPECT_EQ(counters.global.written_bytes, 128u);
}

TEST(Trace, ShowsOneWarp) {
  Module const module =
      load_module(kernel_text("  mov.u32 %r0, 7;\n  setp.lt.s32 %p0, %r30, 33;\n  @!%p0 bra $end;\n  add.s32 %r0, %r0, 1;\n$end:\n"));
  GlobalMemory global;
  std::ostringstream text;
  LaunchConfig config{{1}, {64}};
  config.trace = {&text, 0, 1};
  config.count_forms = true;
  std::uint8_t const parameters[32] = {};
  Counters const counters = launch(module, "kernel", config, parameters, global);
  EXPECT_TRUE(has(text.str(), "ffffffff  mov.u32 %r0, 7 = 0x00000007"));
  EXPECT_TRUE(has(text.str(), "setp.lt.s32 %p0, %r30, 33 = 00000001"));
  EXPECT_TRUE(has(text.str(), "00000001  add.s32 %r0, %r0, 1 = 0x00000008"));
  EXPECT_EQ(counters.by_form.at("ret"), 2u);
  EXPECT_EQ(counters.warp_instructions, 2u * 16u);
}

TEST(Budget, RegistersThatNobodyGivesBack) {
  Program program;
  program.threads = 512;
  EXPECT_EQ(fault_of(program, "  setmaxnreg.dec.sync.aligned.u32 32;\n"), "");
  EXPECT_TRUE(has(fault_of(program, "  setmaxnreg.inc.sync.aligned.u32 160;\n"), "waits for setmaxnreg"));
  EXPECT_TRUE(has(fault_of(program, "  setmaxnreg.inc.sync.aligned.u32 161;\n"), "setmaxnreg to 161"));
}

}  // namespace
}  // namespace vcattn::emulator
