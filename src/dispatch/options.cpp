#include <algorithm>
#include <array>
#include <charconv>
#include <functional>

#include "formats/prepared_layout.hpp"
#include "grouping/order.hpp"
#include "vcattn/options.hpp"

namespace vcattn {

namespace {

template <typename T>
struct Named {
  std::string_view name;
  T value;
};

constexpr std::array kRecipes = {
    Named<Recipe>{"exact", Recipe::exact}, Named<Recipe>{"bf16", Recipe::bf16},           Named<Recipe>{"fp8", Recipe::fp8},
    Named<Recipe>{"sage2", Recipe::sage2}, Named<Recipe>{"vsmooth8", Recipe::vsmooth8},   Named<Recipe>{"vc8-paper", Recipe::vc8_paper},
    Named<Recipe>{"vc8", Recipe::vc8},     Named<Recipe>{"vsmooth8s", Recipe::vsmooth8s}, Named<Recipe>{"vc8s", Recipe::vc8s},
    Named<Recipe>{"nvfp4", Recipe::nvfp4}, Named<Recipe>{"sage3", Recipe::sage3},         Named<Recipe>{"vsmooth4", Recipe::vsmooth4},
};
constexpr std::array kRecipeOrder = {Recipe::exact, Recipe::bf16,      Recipe::fp8,  Recipe::sage2, Recipe::vsmooth8, Recipe::vc8_paper,
                                     Recipe::vc8,   Recipe::vsmooth8s, Recipe::vc8s, Recipe::nvfp4, Recipe::sage3,    Recipe::vsmooth4};
constexpr std::array kQkFormats = {Named<QkFormat>{"f32", QkFormat::f32}, Named<QkFormat>{"bf16", QkFormat::bf16},
                                   Named<QkFormat>{"e4m3", QkFormat::e4m3}, Named<QkFormat>{"int8", QkFormat::int8},
                                   Named<QkFormat>{"nvfp4", QkFormat::nvfp4}};
constexpr std::array kQkScalings = {Named<QkScaling>{"head", QkScaling::head}, Named<QkScaling>{"block", QkScaling::block},
                                    Named<QkScaling>{"unit", QkScaling::unit}};
constexpr std::array kQkRoundings = {Named<QkRounding>{"nearest", QkRounding::nearest}, Named<QkRounding>{"shaped_k", QkRounding::shaped_k},
                                     Named<QkRounding>{"shaped", QkRounding::shaped}};
constexpr std::array kVFormats = {Named<VFormat>{"f32", VFormat::f32}, Named<VFormat>{"bf16", VFormat::bf16},
                                  Named<VFormat>{"e4m3", VFormat::e4m3}, Named<VFormat>{"nvfp4", VFormat::nvfp4}};
constexpr std::array kProbFormats = {Named<ProbFormat>{"f32", ProbFormat::f32}, Named<ProbFormat>{"bf16", ProbFormat::bf16},
                                     Named<ProbFormat>{"e4m3", ProbFormat::e4m3}, Named<ProbFormat>{"nvfp4", ProbFormat::nvfp4},
                                     Named<ProbFormat>{"nvfp4_two_level", ProbFormat::nvfp4_two_level}};
constexpr std::array kExpForms = {Named<ExpForm>{"exp", ExpForm::exp}, Named<ExpForm>{"paper", ExpForm::paper},
                                  Named<ExpForm>{"offset126", ExpForm::offset126}, Named<ExpForm>{"two_line", ExpForm::two_line},
                                  Named<ExpForm>{"affine", ExpForm::affine}};
constexpr std::array kScoreFormats = {Named<ScoreFormat>{"auto", ScoreFormat::automatic}, Named<ScoreFormat>{"f16", ScoreFormat::f16},
                                      Named<ScoreFormat>{"f32", ScoreFormat::f32}};
constexpr std::array kOrders = {Named<GroupOrder>{"auto", GroupOrder::automatic}, Named<GroupOrder>{"sequence", GroupOrder::sequence},
                                Named<GroupOrder>{"label", GroupOrder::label}, Named<GroupOrder>{"chain", GroupOrder::chain},
                                Named<GroupOrder>{"chain_sorted", GroupOrder::chain_sorted}};
constexpr std::array kSwitch = {Named<bool>{"on", true}, Named<bool>{"off", false}};
constexpr std::array kVScales = {Named<bool>{"channel", true}, Named<bool>{"head", false}};

using grouping::kMaxClusters;
constexpr std::int32_t kMaxIterations = 1000;

[[noreturn]] void fail(std::string const& text) { throw Error(ErrorCode::invalid_argument, text); }

template <typename T, std::size_t N>
std::string names_of(std::array<Named<T>, N> const& table) {
  std::string list;
  for (auto const& entry : table) list += (list.empty() ? "" : ", ") + std::string(entry.name);
  return list;
}

template <typename T, std::size_t N>
T parse_name(std::array<Named<T>, N> const& table, std::string_view what, std::string_view text) {
  for (auto const& entry : table) {
    if (entry.name == text) return entry.value;
  }
  fail(std::string(what) + " must be one of: " + names_of(table) + "; got '" + std::string(text) + "'");
}

template <typename T, std::size_t N>
std::string name_of(std::array<Named<T>, N> const& table, T value) {
  for (auto const& entry : table) {
    if (entry.value == value) return std::string(entry.name);
  }
  return "?";
}

std::int32_t parse_integer(std::string_view key, std::string_view text, std::int32_t low, std::int32_t high) {
  std::int32_t value = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < low || value > high) {
    fail("option " + std::string(key) + " must be an integer in " + std::to_string(low) + ".." + std::to_string(high) + "; got '" +
         std::string(text) + "'");
  }
  return value;
}

std::int32_t parse_block(std::string_view key, std::string_view text) {
  std::int32_t const value = parse_integer(key, text, 1, 1 << 20);
  if (value != 32 && value != 64 && value != 128)
    fail("option " + std::string(key) + " must be 32, 64 or 128; got '" + std::string(text) + "'");
  return value;
}

/// One option: how to set it from text and how to print it.
struct Entry {
  std::string_view key;
  std::function<void(Options&, std::string_view)> set;
  std::function<std::string(Options const&)> get;
};

template <typename T, std::size_t N>
Entry named_entry(std::string_view key, std::array<Named<T>, N> const& table, T Options::*field) {
  return {key,
          [key, &table, field](Options& o, std::string_view text) { o.*field = parse_name(table, "option " + std::string(key), text); },
          [&table, field](Options const& o) { return name_of(table, o.*field); }};
}

Entry block_entry(std::string_view key, std::int32_t Options::*field) {
  return {key, [key, field](Options& o, std::string_view text) { o.*field = parse_block(key, text); },
          [field](Options const& o) { return std::to_string(o.*field); }};
}

Entry integer_entry(std::string_view key, std::int32_t Options::*field, std::int32_t low, std::int32_t high) {
  return {key, [=](Options& o, std::string_view text) { o.*field = parse_integer(key, text, low, high); },
          [field](Options const& o) { return std::to_string(o.*field); }};
}

QkScaling default_scaling(QkFormat format) { return format == QkFormat::e4m3 ? QkScaling::unit : QkScaling::block; }
std::int32_t default_top_code(ExpForm form) { return form == ExpForm::paper ? 120 : 126; }

std::vector<Entry> const& entries() {
  static std::vector<Entry> const table = {
      // Choosing a format or a form also chooses the scaling or top code that belongs to it; later keys may override.
      {"qk",
       [](Options& o, std::string_view text) {
         o.qk = parse_name(kQkFormats, "option qk", text);
         o.qk_scaling = default_scaling(o.qk);
         if (o.qk == QkFormat::f32 || o.qk == QkFormat::bf16) o.qk_rounding = QkRounding::nearest;
       },
       [](Options const& o) { return name_of(kQkFormats, o.qk); }},
      named_entry("qk_scaling", kQkScalings, &Options::qk_scaling),
      named_entry("rounding", kQkRoundings, &Options::qk_rounding),
      block_entry("q_block", &Options::q_block),
      block_entry("k_block", &Options::k_block),
      named_entry("k_mean", kSwitch, &Options::k_mean),
      named_entry("q_mean", kSwitch, &Options::q_mean),
      named_entry("hadamard", kSwitch, &Options::hadamard),
      named_entry("scores", kScoreFormats, &Options::scores),
      named_entry("v", kVFormats, &Options::v),
      named_entry("v_scaling", kVScales, &Options::v_per_channel),
      named_entry("v_mean", kSwitch, &Options::v_mean),
      block_entry("block", &Options::v_block),
      named_entry("emc", kSwitch, &Options::emc),
      named_entry("prob", kProbFormats, &Options::prob),
      {"expcast",
       [](Options& o, std::string_view text) {
         o.exp_form = parse_name(kExpForms, "option expcast", text);
         o.top_code = default_top_code(o.exp_form);
       },
       [](Options const& o) { return name_of(kExpForms, o.exp_form); }},
      integer_entry("top", &Options::top_code, 8, 126),
      named_entry("order", kOrders, &Options::order),
      integer_entry("clusters", &Options::clusters, 0, kMaxClusters),
      integer_entry("iterations", &Options::iterations, 1, kMaxIterations),
      integer_entry("warm_iterations", &Options::warm_iterations, 1, kMaxIterations),
      named_entry("check_finite", kSwitch, &Options::check_finite),
  };
  return table;
}

Entry const& find_entry(std::string_view key) {
  std::string keys;
  for (Entry const& entry : entries()) {
    if (entry.key == key) return entry;
    keys += (keys.empty() ? "" : ", ") + std::string(entry.key);
  }
  fail("unknown option '" + std::string(key) + "'; the options are: " + keys);
}

}  // namespace

std::span<Recipe const> all_recipes() { return kRecipeOrder; }

std::string_view recipe_name(Recipe recipe) {
  for (auto const& entry : kRecipes) {
    if (entry.value == recipe) return entry.name;
  }
  return "?";
}

Recipe parse_recipe(std::string_view name) { return parse_name(kRecipes, "recipe", name); }

Options recipe_options(Recipe recipe) {
  Options o;
  o.recipe = recipe;
  // What most recipes are not: start from plain tensors, then add.
  o.qk = QkFormat::f32;
  o.k_mean = o.q_mean = o.hadamard = o.v_mean = o.emc = false;
  o.v = VFormat::f32;
  o.prob = ProbFormat::f32;
  o.exp_form = ExpForm::exp;

  auto const e4m3_probabilities = [&](ExpForm form) {
    o.v = VFormat::e4m3;
    o.prob = ProbFormat::e4m3;
    o.exp_form = form;
    o.top_code = default_top_code(form);
  };
  auto const vsmooth = [&](bool emc) {
    o.v_mean = true;
    o.emc = emc;
  };
  auto const smooth_qk = [&](QkFormat format, QkScaling scaling) {
    o.qk = format;
    o.qk_scaling = scaling;
    o.k_mean = o.hadamard = true;
  };
  auto const nvfp4 = [&](ProbFormat prob) {
    o.qk = QkFormat::nvfp4;
    o.v = VFormat::nvfp4;
    o.prob = prob;
    o.v_per_channel = false;
  };

  switch (recipe) {
    case Recipe::exact:
      break;
    case Recipe::bf16:
      o.qk = QkFormat::bf16;
      o.v = VFormat::bf16;
      o.prob = ProbFormat::bf16;
      break;
    case Recipe::fp8:
      o.qk = QkFormat::e4m3;
      o.qk_scaling = QkScaling::head;
      e4m3_probabilities(ExpForm::exp);
      o.v_per_channel = false;
      break;
    case Recipe::sage2:
      o.qk = QkFormat::int8;
      o.q_block = 32;
      o.k_block = 64;
      o.k_mean = true;
      e4m3_probabilities(ExpForm::exp);
      break;
    case Recipe::vsmooth8:
    case Recipe::vc8:
      smooth_qk(QkFormat::e4m3, QkScaling::unit);
      o.qk_rounding = QkRounding::shaped_k;
      e4m3_probabilities(recipe == Recipe::vc8 ? ExpForm::two_line : ExpForm::exp);
      vsmooth(true);
      break;
    case Recipe::vsmooth8s:
    case Recipe::vc8s:
      smooth_qk(QkFormat::int8, QkScaling::block);
      e4m3_probabilities(recipe == Recipe::vc8s ? ExpForm::two_line : ExpForm::exp);
      vsmooth(true);
      break;
    case Recipe::vc8_paper:
      smooth_qk(QkFormat::e4m3, QkScaling::block);
      e4m3_probabilities(ExpForm::paper);
      vsmooth(false);
      break;
    case Recipe::nvfp4:
      nvfp4(ProbFormat::nvfp4);
      break;
    case Recipe::sage3:
    case Recipe::vsmooth4:
      nvfp4(ProbFormat::nvfp4_two_level);
      o.k_mean = o.q_mean = true;
      if (recipe == Recipe::vsmooth4) {
        vsmooth(true);
        o.hadamard = true;
        o.qk_rounding = QkRounding::shaped;
      }
      break;
  }
  return o;
}

void set_option(Options& options, std::string_view key, std::string_view value) { find_entry(key).set(options, value); }

void set_options(Options& options, std::string_view list) {
  std::vector<std::pair<std::string_view, std::string_view>> pairs;
  while (!list.empty()) {
    auto const comma = std::min(list.find(','), list.size());
    std::string_view const item = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    auto const equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0) fail("options are written key=value,key=value; got '" + std::string(item) + "'");
    pairs.emplace_back(item.substr(0, equals), item.substr(equals + 1));
    auto const same_key = [&](auto const& pair) { return pair.first == pairs.back().first; };
    if (std::count_if(pairs.begin(), pairs.end(), same_key) > 1) fail("option " + std::string(pairs.back().first) + " must be set once");
  }
  // Formats and forms first, since they bring a scaling and a top code with them: the order in the text then does not matter.
  std::stable_partition(pairs.begin(), pairs.end(), [](auto const& pair) { return pair.first == "qk" || pair.first == "expcast"; });
  for (auto const& [key, value] : pairs) set_option(options, key, value);
}

std::vector<std::pair<std::string, std::string>> describe_options(Options const& options) {
  std::vector<std::pair<std::string, std::string>> result;
  for (Entry const& entry : entries()) result.emplace_back(entry.key, entry.get(options));
  return result;
}

void validate_options(Options const& o) {
  auto const block_ok = [](std::int32_t rows) { return rows == 32 || rows == 64 || rows == 128; };
  if (!block_ok(o.q_block) || !block_ok(o.k_block) || !block_ok(o.v_block)) {
    fail("q_block, k_block and block must be 32, 64 or 128; got " + std::to_string(o.q_block) + ", " + std::to_string(o.k_block) + ", " +
         std::to_string(o.v_block));
  }
  if (o.top_code < 8 || o.top_code > 126) fail("top must be an E4M3 code in 8..126; got " + std::to_string(o.top_code));
  if (o.clusters < 0 || o.clusters > kMaxClusters) {
    fail("clusters must be in 0.." + std::to_string(kMaxClusters) + ", 0 for automatic; got " + std::to_string(o.clusters));
  }
  for (std::int32_t const iterations : {o.iterations, o.warm_iterations}) {
    if (iterations < 1 || iterations > kMaxIterations) {
      fail("iterations and warm_iterations must be in 1.." + std::to_string(kMaxIterations) + "; got " + std::to_string(iterations));
    }
  }
  if (o.num_threads < 0) fail("num_threads must be >= 0, 0 for all cores; got " + std::to_string(o.num_threads));
  if (o.qk_scaling == QkScaling::unit && o.qk == QkFormat::int8) fail("qk_scaling=unit is for qk=e4m3; with qk=int8 use block or head");
  if (o.qk_rounding != QkRounding::nearest && (o.qk == QkFormat::f32 || o.qk == QkFormat::bf16)) {
    fail("rounding=shaped and shaped_k are for qk=e4m3, int8 or nvfp4; got qk=" + name_of(kQkFormats, o.qk));
  }
  bool const unit = o.qk == QkFormat::e4m3 && o.qk_scaling == QkScaling::unit;
  if (o.scores == ScoreFormat::f16 && !formats::allows_f16_scores(o.exp_form))
    fail("scores=f16 needs expcast=two_line, offset126 or exp, whose row constants packed halves can hold; use scores=auto or f32");
  if (o.scores == ScoreFormat::f16 && !unit)
    fail("scores=f16 needs qk=e4m3 with qk_scaling=unit, which bounds the products; use scores=auto or f32");
  if (o.q_mean && unit) fail("q_mean=on does not go with qk_scaling=unit; use qk_scaling=block or q_mean=off");
  if (o.exp_form != ExpForm::exp && o.prob != ProbFormat::e4m3) {
    fail("expcast=" + name_of(kExpForms, o.exp_form) + " makes E4M3 bytes and needs prob=e4m3; got prob=" + name_of(kProbFormats, o.prob) +
         "; use expcast=exp");
  }
  if (o.exp_form == ExpForm::paper && o.top_code != 120) fail("expcast=paper fixes top=120; got top=" + std::to_string(o.top_code));
  if (o.exact_f64 && (o.qk != QkFormat::f32 || o.v != VFormat::f32 || o.prob != ProbFormat::f32)) {
    fail("exact_f64 needs qk=f32, v=f32, prob=f32; use the recipe `exact`");
  }
}

}  // namespace vcattn
