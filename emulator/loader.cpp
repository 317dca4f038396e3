#include "emulator/loader.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <sstream>

#include "emulator/control_flow.hpp"
#include "emulator/fault.hpp"
#include "emulator/forms.hpp"

namespace vcattn::emulator {

namespace {

[[noreturn]] void refuse(std::uint32_t line, std::string const& what) { throw LoadError("PTX line " + std::to_string(line) + ": " + what); }

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%' || c == '.'; }

/// Text without comments, with a position in it.
class Text {
 public:
  explicit Text(std::string_view ptx) : text_(ptx) {
    for (std::size_t i = text_.find("//"); i != std::string::npos; i = text_.find("//", i)) {
      for (; i < text_.size() && text_[i] != '\n'; ++i) text_[i] = ' ';
    }
  }

  std::uint32_t line() const { return line_; }
  bool at_end() {
    skip_space();
    return at_ == text_.size();
  }
  char peek() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  std::string_view peek_word() {
    skip_space();
    std::size_t end = at_;
    while (end < text_.size() &&
           (is_word(text_[end]) || text_.substr(end, 2) == "::" || (end > at_ && text_[end - 1] == ':' && text_[end] == ':')))
      ++end;
    return std::string_view(text_).substr(at_, end - at_);
  }
  std::string word() {
    std::string const result(peek_word());
    at_ += result.size();
    return result;
  }
  /// Up to one of `stops`, which is not taken.
  std::string until(std::string_view stops) {
    skip_space();
    std::string result;
    while (at_ < text_.size() && stops.find(text_[at_]) == std::string_view::npos) {
      if (text_[at_] == '\n') ++line_;
      result += text_[at_++];
    }
    return result;
  }
  std::string rest_of_line() {
    std::size_t const end = std::min(text_.find('\n', at_), text_.size());
    std::string result = text_.substr(at_, end - at_);
    at_ = end;
    return result;
  }
  /// From an opening brace, which may come after more text, to the one that closes it.
  void skip_block() {
    int depth = 0;
    do {
      std::size_t const end = std::min(text_.find_first_of("{}", at_), text_.size());
      line_ += static_cast<std::uint32_t>(
          std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_), text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
      if (end == text_.size()) refuse(line_, "a block does not end");
      depth += text_[end] == '{' ? 1 : -1;
      at_ = end + 1;
    } while (depth > 0);
  }

  struct Place {
    std::size_t at;
    std::uint32_t line;
  };
  Place place() const { return {at_, line_}; }
  void go_to(Place place) {
    at_ = place.at;
    line_ = place.line;
  }

 private:
  void skip_space() {
    for (; at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0; ++at_) {
      if (text_[at_] == '\n') ++line_;
    }
  }

  std::string text_;
  std::size_t at_ = 0;
  std::uint32_t line_ = 1;
};

std::string trimmed(std::string const& s) {
  auto const begin = s.find_first_not_of(" \t\n\r");
  if (begin == std::string::npos) return "";
  return s.substr(begin, s.find_last_not_of(" \t\n\r") - begin + 1);
}

/// At commas and bars outside brackets and braces.
std::vector<std::string> split_operands(std::string const& text) {
  std::vector<std::string> parts;
  std::string part;
  int depth = 0;
  for (char const c : text) {
    if (c == '[' || c == '{' || c == '(') ++depth;
    if (c == ']' || c == '}' || c == ')') --depth;
    if (depth == 0 && (c == ',' || c == '|')) {
      parts.push_back(trimmed(part));
      part.clear();
    } else {
      part += c;
    }
  }
  if (!trimmed(part).empty()) parts.push_back(trimmed(part));
  return parts;
}

/// Bits of a literal: integer, 0f..., 0d...
std::optional<std::uint64_t> literal(std::string text) {
  if (text.empty()) return {};
  bool const negative = text[0] == '-';
  if (negative) text.erase(0, 1);
  int base = 10;
  if (text.size() > 2 && text[0] == '0' && std::string("xXfFdD").find(text[1]) != std::string::npos) {
    base = 16;
    text.erase(0, 2);
  }
  if (!text.empty() && text.back() == 'U') text.pop_back();
  std::uint64_t value = 0;
  auto const result = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return {};
  return negative ? 0 - value : value;
}

/// ".align 4 .b8 name[128]" and the like, without the state space. elements: 0 for "name[]".
struct Declaration {
  std::string name;
  std::uint32_t alignment = 0, element_bytes = 0;
  std::size_t elements = 1;
};
Declaration declaration(std::string const& text, std::uint32_t line) {
  Declaration d;
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    if (word == ".align") {
      in >> d.alignment;
    } else if (word[0] == '.') {
      auto const digits = word.find_first_of("0123456789");
      if (digits == std::string::npos) refuse(line, "the emulator does not know " + word + " of a variable");
      d.element_bytes = static_cast<std::uint32_t>(std::stoul(word.substr(digits))) / 8;
    } else {
      auto const open = word.find('[');
      d.name = word.substr(0, open);
      if (open != std::string::npos) d.elements = word[open + 1] == ']' ? 0 : std::stoul(word.substr(open + 1));
    }
  }
  if (d.name.empty() || d.element_bytes == 0) refuse(line, "not a variable: " + text);
  if (d.alignment == 0) d.alignment = d.element_bytes;
  return d;
}

/// kind: as in Form::pattern, and i (immediate, special register, symbol), s (address in 32 bits). ids: registers and constants.
struct Operand {
  char kind = 0;
  std::vector<std::uint32_t> ids;
  std::string kinds;  // of the elements of a vector
  std::int64_t offset = 0;
  std::string label;
  std::vector<std::uint32_t> immediates;  // positions in ids whose width the pattern decides
};

/// A .func: its parameters and results are registers of its caller.
struct Function {
  std::vector<Declaration> parameters, results;
  Text::Place body;  // behind the opening brace
};
using Functions = std::map<std::string, Function>;

class KernelLoader {
 public:
  KernelLoader(Module& module, Functions const& functions, Kernel& kernel, Text& text)
      : module_(module), functions_(functions), kernel_(kernel), text_(text) {}

  void load() {
    frame_.scopes.emplace_back();
    while (!frame_.scopes.empty()) statement();
    resolve_labels();
    assign_slots();
    set_reconvergence(kernel_);
  }

 private:
  struct Register {
    char kind;  // r d h p
    std::string name;
    std::int32_t constant = -1;
    bool used = false, matrix = false;
    std::uint32_t slot = 0;
  };

  void statement() {
    if (text_.at_end()) refuse(text_.line(), "the kernel does not end");
    if (text_.take('{')) return void(frame_.scopes.emplace_back());
    if (text_.take('}')) return frame_.scopes.pop_back();
    if (text_.take(';')) return;
    std::uint32_t const line = text_.line();
    if (text_.peek() == '@' || text_.peek_word()[0] != '.') {
      std::string const word(text_.peek_word());
      if (text_.peek() != '@' && word[0] == '$') return label(text_.word());
      return instruction(line);
    }
    std::string const directive = text_.word();
    if (directive == ".loc") return location(text_.rest_of_line());
    if (directive == ".reg") return registers(text_.until(";"));
    if (directive == ".pragma") return void(text_.until(";"));
    if (directive == ".shared") return place(kernel_.shared, kernel_.shared_bytes, declaration(text_.until(";"), line));
    if (directive == ".local") return place(kernel_.local, kernel_.local_bytes, declaration(text_.until(";"), line));
    if (directive == ".param") return argument(declaration(text_.until(";"), line), line);
    refuse(line, "directive " + directive + " is not known");
  }

  void label(std::string const& name) {
    if (!text_.take(':')) refuse(text_.line(), "a label ends with a colon: " + name);
    labels_[frame_.prefix + name] = static_cast<std::uint32_t>(kernel_.code.size());
  }

  void location(std::string const& text) {
    std::istringstream in(text);
    std::uint32_t file = 0, line = 0;
    in >> file >> line;
    if (line == 0) return;
    file_ = file;
    source_line_ = line;
  }

  static void place(std::vector<Placed>& list, std::uint32_t& bytes, Declaration const& d) {
    list.push_back({d.name, aligned_up(bytes, d.alignment), static_cast<std::uint32_t>(d.elements) * d.element_bytes});
    bytes = list.back().offset + list.back().bytes;
  }

  /// A parameter or result of a call: a register.
  void argument(Declaration const& d, std::uint32_t line) {
    if (d.elements != 1 || d.element_bytes < 4) refuse(line, "structures as arguments of a function are not known: " + d.name);
    std::uint32_t const id = add_register(d.element_bytes == 8 ? 'd' : 'r', d.name);
    frame_.scopes.back()[d.name] = id;
  }

  /// call.uni (results), function, (parameters): the body of the function, whose returns jump behind it.
  void call(std::string const& text, std::uint32_t line) {
    std::vector<std::vector<std::string>> lists;
    std::string name;
    for (std::string const& part : split_operands(text)) {
      if (part[0] == '(') {
        lists.push_back(split_operands(part.substr(1, part.size() - 2)));
      } else {
        name = part;
      }
    }
    auto const found = functions_.find(name);
    if (found == functions_.end()) refuse(line, "call of " + name + ", which this module does not have");
    Function const& function = found->second;
    std::vector<std::string> bound;
    for (auto const& list : lists) bound.insert(bound.end(), list.begin(), list.end());
    std::vector<Declaration> declared = function.results;
    declared.insert(declared.end(), function.parameters.begin(), function.parameters.end());
    if (bound.size() != declared.size()) refuse(line, "call of " + name + " with another number of arguments");
    if (++calls_ > kMostCalls) refuse(line, "more than " + std::to_string(kMostCalls) + " calls: a recursion?");

    Frame inner;
    inner.prefix = std::to_string(calls_) + ":";
    inner.inlined = true;
    inner.scopes.resize(2);
    for (std::size_t i = 0; i < bound.size(); ++i) {
      auto const id = find_register(bound[i]);
      if (!id) refuse(line, "unknown argument " + bound[i]);
      inner.scopes[0][declared[i].name] = *id;
    }
    std::swap(frame_, inner);
    Text::Place const behind = text_.place();
    text_.go_to(function.body);
    while (frame_.scopes.size() > 1) statement();
    label_return();
    text_.go_to(behind);
    std::swap(frame_, inner);
  }
  static constexpr char const* kReturn = "return";
  void label_return() { labels_[frame_.prefix + kReturn] = static_cast<std::uint32_t>(kernel_.code.size()); }

  void registers(std::string const& text) {
    std::istringstream in(text);
    std::string type;
    in >> type;
    char const kind = type == ".pred"                        ? 'p'
                      : type.find("16") != std::string::npos ? 'h'
                      : type.find("32") != std::string::npos ? 'r'
                      : type.find("64") != std::string::npos ? 'd'
                                                             : '?';
    if (kind == '?') refuse(text_.line(), "registers of type " + type + " are not known");
    std::string names;
    std::getline(in, names);
    for (std::string const& name : split_operands(names)) {
      if (auto const open = name.find('<'); open != std::string::npos) {
        frame_.families[name.substr(0, open)] = kind;
      } else {
        frame_.scopes.back()[name] = add_register(kind, name);
      }
    }
  }

  std::uint32_t add_register(char kind, std::string const& name) {
    registers_.push_back({kind, name});
    return static_cast<std::uint32_t>(registers_.size() - 1);
  }

  /// A register by its name, in the innermost scope that has it.
  std::optional<std::uint32_t> find_register(std::string const& name) {
    for (auto scope = frame_.scopes.rbegin(); scope != frame_.scopes.rend(); ++scope) {
      if (auto const found = scope->find(name); found != scope->end()) return found->second;
    }
    if (name.empty() || name[0] != '%') return {};
    auto const digits = name.find_first_of("0123456789");
    if (digits == std::string::npos) return {};
    auto const family = frame_.families.find(name.substr(0, digits));
    if (family == frame_.families.end()) return {};
    return frame_.scopes.front()[name] = add_register(family->second, name);
  }

  std::optional<Constant> special_register(std::string const& name) {
    using Kind = Constant::Kind;
    static std::map<std::string, Kind> const kKinds = {{"%tid", Kind::tid},       {"%ntid", Kind::ntid},     {"%ctaid", Kind::ctaid},
                                                       {"%nctaid", Kind::nctaid}, {"%laneid", Kind::laneid}, {"%warpid", Kind::warpid}};
    auto const dot = name.find('.');
    auto const found = kKinds.find(name.substr(0, dot));
    if (found == kKinds.end()) return {};
    Constant constant;
    constant.kind = found->second;
    constant.number = dot == std::string::npos ? 0 : static_cast<std::uint64_t>(name[dot + 1] - 'x');
    return constant;
  }

  std::uint32_t add_constant(Constant const& constant) {
    auto const [found, added] = constants_.try_emplace(constant.key(), 0);
    if (added) {
      found->second = add_register(constant.wide ? 'd' : 'r', "constant");
      registers_.back().constant = static_cast<std::int32_t>(kernel_.constants.size());
      kernel_.constants.push_back(constant);
    }
    return found->second;
  }

  static bool has(std::vector<Placed> const& list, std::string const& symbol) {
    return std::any_of(list.begin(), list.end(), [&](Placed const& p) { return p.symbol == symbol; });
  }
  bool is_shared(std::string const& symbol) const { return module_.shared.count(symbol) != 0 || has(kernel_.shared, symbol); }
  bool is_symbol(std::string const& name) const {
    return has(kernel_.parameters, name) || is_shared(name) || has(kernel_.local, name) || module_.globals.count(name) != 0;
  }

  Operand value(std::string const& text) {
    if (auto const id = find_register(text)) return {registers_[*id].kind, {*id}, "", 0, "", {}};
    Constant constant;
    if (auto const special = special_register(text)) {
      constant = *special;
    } else if (auto const number = literal(text)) {
      constant.number = *number;
    } else if (is_symbol(text)) {
      constant.kind = Constant::Kind::symbol;
      constant.symbol = text;
    } else {
      return {'l', {}, "", 0, text, {}};
    }
    pending_constants_.push_back(constant);
    return {'i', {static_cast<std::uint32_t>(pending_constants_.size() - 1)}, "", 0, "", {0}};
  }

  Operand vector(std::string const& text) {
    Operand operand{'{', {}, "", 0, "", {}};
    for (std::string const& part : split_operands(text.substr(1, text.size() - 2))) {
      Operand const element = value(part);
      if (element.ids.empty()) refuse(text_.line(), "unknown element " + part + " of a vector");
      operand.kinds += element.kind;
      if (element.kind == 'i') operand.immediates.push_back(static_cast<std::uint32_t>(operand.ids.size()));
      operand.ids.push_back(element.ids[0]);
    }
    return operand;
  }

  /// [base], [base+offset], [map, {coordinates}]
  Operand address(std::string const& text) {
    auto const parts = split_operands(text.substr(1, text.size() - 2));
    if (parts.size() == 2) {
      Operand operand = value(parts[0]);
      Operand const coordinates = vector(parts[1]);
      if (operand.kind != 'd') refuse(text_.line(), "a tensor map needs a 64-bit address: " + text);
      operand.kind = 't';
      for (std::uint32_t const i : coordinates.immediates) operand.immediates.push_back(i + 1);
      operand.ids.insert(operand.ids.end(), coordinates.ids.begin(), coordinates.ids.end());
      return operand;
    }
    std::string base = parts.at(0);
    std::int64_t offset = 0;
    if (auto const plus = base.find('+'); plus != std::string::npos) {
      auto const number = literal(trimmed(base.substr(plus + 1)));
      if (!number) refuse(text_.line(), "bad offset in " + text);
      offset = static_cast<std::int64_t>(*number);
      base = trimmed(base.substr(0, plus));
    }
    Operand operand = value(base);
    if (operand.kind == 'i') {
      operand.kind = is_shared(base) ? 's' : 'm';
    } else if (operand.kind == 'r' || operand.kind == 'd') {
      operand.kind = operand.kind == 'r' ? 's' : 'm';
    } else {
      refuse(text_.line(), "bad address " + text);
    }
    operand.offset = offset;
    return operand;
  }

  Operand operand(std::string const& text) {
    if (text[0] == '{') return vector(text);
    if (text[0] == '[') return address(text);
    return value(text);
  }

  /// One pattern element against one operand; `at` moves past the element.
  static bool matches(std::string_view pattern, std::size_t& at, Operand const& operand) {
    char const kind = pattern[at++];
    if (kind == '{') {
      auto const close = pattern.find('}', at);
      std::string_view const elements = pattern.substr(at, close - at);
      at = close + 1;
      if (operand.kind != '{' || operand.kinds.size() != elements.size()) return false;
      for (std::size_t i = 0; i < elements.size(); ++i) {
        if (operand.kinds[i] != elements[i] && !(operand.kinds[i] == 'i' && elements[i] != 'p')) return false;
      }
      return true;
    }
    if (kind == 'v') return operand.kind == '{' && operand.kinds.find_first_not_of('r') == std::string::npos;
    if (operand.kind == 'i') return kind == 'r' || kind == 'd' || kind == 'h';
    return operand.kind == kind;
  }

  static bool matches(std::string_view pattern, std::vector<Operand> const& operands) {
    std::size_t at = 0;
    for (Operand const& o : operands) {
      if (at < pattern.size() && pattern[at] == '=') ++at;
      if (at >= pattern.size() || !matches(pattern, at, o)) return false;
    }
    return at == pattern.size() || (at + 1 == pattern.size() && pattern[at] == '=');
  }

  void instruction(std::uint32_t line) {
    Instruction in;
    in.line = line;
    in.file = file_;
    in.source_line = source_line_;
    std::string text;
    if (text_.take('@')) {
      in.guard_negated = text_.take('!');
      std::string const name = text_.word();
      auto const id = find_register(name);
      if (!id) refuse(line, "unknown predicate " + name);
      in.guard = static_cast<std::int32_t>(*id);
      registers_[*id].used = true;
      text = std::string("@") + (in.guard_negated ? "!" : "") + name + " ";
    }
    std::string name = text_.word();
    std::string rest = trimmed(text_.until(";"));
    if (name == "call" || name == "call.uni") {
      if (in.guard >= 0) refuse(line, "a call under a predicate is not known");
      return call(rest, line);
    }
    text += name + " " + rest;
    if (frame_.inlined && name == "ret") {
      name = "bra.uni";
      rest = kReturn;
    }
    pass_argument(name, rest);
    std::vector<Operand> operands;
    pending_constants_.clear();
    for (std::string const& part : split_operands(rest)) operands.push_back(operand(part));

    Form const* form = nullptr;
    for (Form const& candidate : forms_named(name)) {
      if (matches(candidate.pattern, operands)) {
        form = &candidate;
        break;
      }
    }
    if (form == nullptr) {
      bool const known = !forms_named(name).empty();
      refuse(line, known ? "operands of " + text + " are not known to the emulator" : "the emulator does not know " + name);
    }
    encode(in, *form, operands);
    in.form = form_number(name);
    in.text = static_cast<std::uint32_t>(kernel_.texts.size());
    kernel_.texts.push_back(text);
    kernel_.code.push_back(std::move(in));
  }

  /// st.param and ld.param of an argument of a function become moves between registers.
  void pass_argument(std::string& name, std::string& rest) {
    bool const store = name.starts_with("st.param.");
    if (!store && !name.starts_with("ld.param.")) return;
    std::vector<std::string> const operands = split_operands(rest);
    std::string const& address = operands.at(store ? 0 : 1);
    std::string argument = trimmed(address.substr(1, address.find_first_of("+]") - 1));
    auto const id = find_register(argument);
    if (!id || argument[0] == '%') return;
    std::string const& other = operands.at(store ? 1 : 0);
    char const kind = registers_[*id].kind;
    bool const widens = !store && kind == 'r' && registers_[find_register(other).value_or(*id)].kind == 'd';
    name = widens ? (name.ends_with(".s32") ? "cvt.s64.s32" : "cvt.u64.u32") : kind == 'd' ? "mov.b64" : "mov.b32";
    rest = store ? argument + ", " + other : other + ", " + argument;
  }

  std::uint32_t form_number(std::string const& name) {
    auto const [found, added] = form_numbers_.try_emplace(name, static_cast<std::uint32_t>(kernel_.form_names.size()));
    if (added) kernel_.form_names.push_back(name);
    return found->second;
  }

  void encode(Instruction& in, Form const& form, std::vector<Operand>& operands) {
    in.lanes = form.lanes;
    in.machine = form.machine;
    std::string_view const pattern = form.pattern;
    bool const matrix = std::string_view(form.name).starts_with("wgmma.mma_async");
    bool destination = !pattern.empty() && pattern.find('=') != std::string_view::npos && pattern[0] != '=';
    if (destination) in.result = pattern[0];
    std::size_t at = pattern.starts_with("=") ? 1 : 0;
    std::size_t offsets = 0;
    for (Operand& o : operands) {
      if (at < pattern.size() && pattern[at] == '=') {
        destination = false;
        ++at;
      }
      std::size_t const begin = at;
      (void)matches(pattern, at, o);
      std::string_view const element = pattern.substr(begin, at - begin);
      for (std::uint32_t const position : o.immediates) {
        Constant constant = pending_constants_[o.ids[position]];
        char const kind = element[0] == '{' ? element[position + 1] : element[0];
        constant.wide = kind == 'd' || kind == 'm';
        if (!constant.wide && constant.kind == Constant::Kind::number) constant.number &= kind == 'h' ? 0xFFFFu : 0xFFFFFFFFu;
        o.ids[position] = add_constant(constant);
      }
      if (o.kind == 'm' || o.kind == 's') in.offset[offsets++] = o.offset;
      if (o.kind == 'l') branch_labels_.emplace_back(kernel_.code.size(), frame_.prefix + o.label);
      for (std::uint32_t const id : o.ids) {
        registers_[id].used = true;
        if (matrix && registers_[id].kind == 'r' && registers_[id].constant < 0 && o.kind == '{') registers_[id].matrix = true;
        in.operands.push_back(id);
        (destination ? in.writes : in.reads).push_back(id);
        if (registers_[id].kind == 'p') {
          (destination ? in.result_predicates : in.source_predicates).push_back(id);
        } else if (registers_[id].constant < 0) {
          (destination ? in.results : in.sources).push_back(id);
        }
      }
    }
  }

  void resolve_labels() {
    for (auto const& [index, name] : branch_labels_) {
      auto const found = labels_.find(name);
      if (found == labels_.end()) refuse(kernel_.code[index].line, "unknown label or symbol " + name);
      kernel_.code[index].target = found->second;
    }
  }

  /// Places of the registers: those of wgmma first, 64-bit ones on even slots.
  void assign_slots() {
    std::uint32_t slot = 0, predicate = 0;
    auto const place = [&](auto const& selected) {
      for (Register& r : registers_) {
        if (!r.used || !selected(r)) continue;
        r.slot = slot;
        slot += r.kind == 'd' ? 2 : 1;
      }
    };
    place([](Register const& r) { return r.matrix; });
    kernel_.matrix_slots = slot;
    place([](Register const& r) { return r.kind == 'd'; });
    place([](Register const& r) { return !r.matrix && (r.kind == 'r' || r.kind == 'h'); });
    for (Register& r : registers_) {
      if (r.used && r.kind == 'p') r.slot = predicate++;
    }
    kernel_.slots = slot;
    kernel_.predicates = predicate;
    for (Register const& r : registers_) {
      if (r.constant >= 0) kernel_.constants[static_cast<std::size_t>(r.constant)].slot = r.slot;
    }
    for (Instruction& in : kernel_.code) {
      for (auto* list : {&in.reads, &in.writes}) {
        std::erase_if(*list, [&](std::uint32_t id) { return !registers_[id].matrix; });
        for (std::uint32_t& id : *list) id = registers_[id].slot;
      }
      bool const product = kernel_.form_names[in.form].starts_with("wgmma.mma_async");  // which has rules of its own
      in.touches_matrix = !product && !(in.reads.empty() && in.writes.empty());
      for (auto* list : {&in.operands, &in.sources, &in.results, &in.source_predicates, &in.result_predicates}) {
        for (std::uint32_t& id : *list) id = registers_[id].slot;
      }
      for (std::size_t i = 0; i < in.operands.size() && i < std::size(in.op); ++i) in.op[i] = in.operands[i];
      if (in.guard >= 0) in.guard = static_cast<std::int32_t>(registers_[static_cast<std::size_t>(in.guard)].slot);
    }
  }

  /// Names that the kernel, or the function that is being inlined, sees.
  struct Frame {
    std::vector<std::map<std::string, std::uint32_t>> scopes;
    std::map<std::string, char> families;
    std::string prefix;  // of its labels
    bool inlined = false;
  };
  static constexpr int kMostCalls = 1000;

  Module& module_;
  Functions const& functions_;
  Kernel& kernel_;
  Text& text_;
  Frame frame_;
  int calls_ = 0;
  std::vector<Register> registers_;
  std::map<std::tuple<Constant::Kind, bool, std::uint64_t, std::string>, std::uint32_t> constants_;
  std::vector<Constant> pending_constants_;  // of the instruction being read
  std::map<std::string, std::uint32_t> labels_, form_numbers_;
  std::vector<std::pair<std::size_t, std::string>> branch_labels_;
  std::uint32_t file_ = 0, source_line_ = 0;
};

}  // namespace

class ModuleLoader {
 public:
  /// Everything but the bodies of kernels.
  explicit ModuleLoader(std::string_view ptx) : text_(ptx) {
    while (!text_.at_end()) statement();
  }

  std::map<std::string, std::pair<Kernel, Text::Place>> const& headers() const { return headers_; }
  Module& module() { return module_; }
  void load(std::string const& name) {
    auto const found = headers_.find(name);
    if (found == headers_.end()) throw LoadError("no kernel " + name);
    if (module_.kernels.count(name) != 0) return;
    Kernel kernel = found->second.first;
    text_.go_to(found->second.second);
    KernelLoader(module_, functions_, kernel, text_).load();
    module_.kernels.emplace(name, std::move(kernel));
  }

 private:
  void statement() {
    std::uint32_t const line = text_.line();
    std::string const word = text_.word();
    if (word == ".version" || word == ".target" || word == ".address_size") return void(text_.rest_of_line());
    if (word == ".file") return file(text_.rest_of_line());
    if (word == ".section") return text_.skip_block();
    if (word == ".visible" || word == ".weak" || word == ".extern") return;  // of what follows
    if (word == ".entry") return entry();
    if (word == ".func") return function();
    if (word == ".global" || word == ".shared") return variable(word == ".shared");
    refuse(line, "the emulator does not know " + (word.empty() ? std::string(1, text_.peek()) : word) + " outside a kernel");
  }

  void file(std::string const& text) {
    auto const quote = text.find('"');
    module_.files[static_cast<std::uint32_t>(std::stoul(text))] = text.substr(quote + 1, text.rfind('"') - quote - 1);
  }

  /// .align 128 .b8 name[1920] = {0, 1}
  void variable(bool shared) {
    std::uint32_t const line = text_.line();
    Declaration const d = declaration(text_.until("=;"), line);
    if (shared) {
      if (d.elements != 0) refuse(line, "static shared memory outside a kernel is not known: " + d.name);
      module_.shared[d.name] = d.alignment;
      (void)text_.take(';');
      return;
    }
    GlobalVariable global{d.alignment, std::vector<std::uint8_t>(d.elements * d.element_bytes)};
    if (text_.take('=')) {
      std::string values = trimmed(text_.until(";"));
      if (values[0] == '{') values = values.substr(1, values.size() - 2);
      std::size_t at = 0;
      for (std::string const& part : split_operands(values)) {
        auto const number = literal(part);
        if (!number || at + d.element_bytes > global.bytes.size()) refuse(line, "bad initial value " + part + " of " + d.name);
        for (std::uint32_t b = 0; b < d.element_bytes; ++b) global.bytes[at++] = static_cast<std::uint8_t>(*number >> (8 * b));
      }
    }
    (void)text_.take(';');
    module_.globals[d.name] = std::move(global);
  }

  /// name(.param .align 128 .b8 name_param_0[896], .param .u64 name_param_1) .maxntid 512, 1, 1 { ... }
  void entry() {
    std::uint32_t const line = text_.line();
    Kernel kernel;
    kernel.name = text_.word();
    for (Declaration const& d : parameters(line)) {
      Placed const placed{d.name, aligned_up(kernel.parameter_bytes, d.alignment),
                          static_cast<std::uint32_t>(d.elements) * d.element_bytes};
      kernel.parameter_bytes = placed.offset + placed.bytes;
      kernel.parameter_alignment = std::max(kernel.parameter_alignment, d.alignment);
      kernel.parameters.push_back(placed);
    }
    while (text_.peek() != '{') {
      std::string const word = text_.word();
      if (word == ".maxntid") {
        kernel.max_threads = static_cast<std::uint32_t>(std::stoul(text_.word()));
        (void)text_.rest_of_line();
      } else if (word == ".minnctapersm") {
        (void)text_.word();
      } else {
        refuse(text_.line(), "the emulator does not know " + word + " of a kernel");
      }
    }
    Text::Place const begin = text_.place();
    text_.skip_block();
    headers_.emplace(kernel.name, std::pair(kernel, behind_brace(begin)));
  }

  /// (results) name (parameters); or with a body
  void function() {
    std::uint32_t const line = text_.line();
    Function result;
    result.results = parameters(line);
    std::string const name = text_.word();
    result.parameters = parameters(line);
    if (text_.take(';')) return;
    Text::Place const begin = text_.place();
    text_.skip_block();
    result.body = behind_brace(begin);
    functions_[name] = std::move(result);
  }

  Text::Place behind_brace(Text::Place begin) {
    Text::Place const here = text_.place();
    text_.go_to(begin);
    (void)text_.take('{');
    Text::Place const result = text_.place();
    text_.go_to(here);
    return result;
  }

  /// (.param .u64 name, ...), if it is there.
  std::vector<Declaration> parameters(std::uint32_t line) {
    std::vector<Declaration> result;
    if (!text_.take('(')) return result;
    for (std::string const& part : split_operands(text_.until(")"))) {
      auto const space = part.find(".param");
      if (space == std::string::npos) refuse(line, "not a parameter: " + part);
      result.push_back(declaration(part.substr(space + 6), line));
    }
    (void)text_.take(')');
    return result;
  }

  Text text_;
  Module module_;
  Functions functions_;
  std::map<std::string, std::pair<Kernel, Text::Place>> headers_;
};

LazyModule::LazyModule(std::string_view ptx) : loader_(std::make_unique<ModuleLoader>(ptx)) {}
LazyModule::LazyModule(LazyModule&&) noexcept = default;
LazyModule::~LazyModule() = default;

std::vector<std::string> LazyModule::kernel_names() const {
  std::vector<std::string> names;
  for (auto const& [name, header] : loader_->headers()) names.push_back(name);
  return names;
}

Module const& LazyModule::with_kernel(std::string const& name) {
  loader_->load(name);
  return loader_->module();
}

Module load_module(std::string_view ptx) {
  ModuleLoader loader(ptx);
  for (auto const& [name, header] : loader.headers()) loader.load(name);
  return std::move(loader.module());
}

}  // namespace vcattn::emulator
