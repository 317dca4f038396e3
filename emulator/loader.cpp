#include "emulator/loader.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
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
  void skip_block() {
    int depth = 0;
    do {
      (void)until("{}");
      depth += text_[at_] == '{' ? 1 : -1;
      ++at_;
    } while (depth > 0 && at_ < text_.size());
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
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
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

/// kind: as in Form::pattern, and i (immediate, special register, symbol), s (address in 32 bits). ids: registers and constants.
struct Operand {
  char kind = 0;
  std::vector<std::uint32_t> ids;
  std::string kinds;  // of the elements of a vector
  std::int64_t offset = 0;
  std::string label;
  std::vector<std::uint32_t> immediates;  // positions in ids whose width the pattern decides
};

class KernelLoader {
 public:
  KernelLoader(Module& module, Kernel& kernel, Text& text) : module_(module), kernel_(kernel), text_(text) {}

  void load() {
    scopes_.emplace_back();
    while (!scopes_.empty()) statement();
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
    if (text_.take('{')) return void(scopes_.emplace_back());
    if (text_.take('}')) return scopes_.pop_back();
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
    refuse(line, "directive " + directive + " is not known");
  }

  void label(std::string const& name) {
    if (!text_.take(':')) refuse(text_.line(), "a label ends with a colon: " + name);
    labels_[name] = static_cast<std::uint32_t>(kernel_.code.size());
  }

  void location(std::string const& text) {
    std::istringstream in(text);
    std::uint32_t file = 0, line = 0;
    in >> file >> line;
    if (line == 0) return;
    file_ = file;
    source_line_ = line;
  }

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
        families_[name.substr(0, open)] = kind;
      } else {
        scopes_.back()[name] = add_register(kind, name);
      }
    }
  }

  std::uint32_t add_register(char kind, std::string const& name) {
    registers_.push_back({kind, name});
    return static_cast<std::uint32_t>(registers_.size() - 1);
  }

  /// A register by its name, in the innermost scope that has it.
  std::optional<std::uint32_t> find_register(std::string const& name) {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (auto const found = scope->find(name); found != scope->end()) return found->second;
    }
    if (name.empty() || name[0] != '%') return {};
    auto const digits = name.find_first_of("0123456789");
    if (digits == std::string::npos) return {};
    auto const family = families_.find(name.substr(0, digits));
    if (family == families_.end()) return {};
    return scopes_.front()[name] = add_register(family->second, name);
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

  bool is_shared(std::string const& symbol) const { return module_.shared.count(symbol) != 0; }
  bool is_symbol(std::string const& name) const { return name == kernel_.parameter || is_shared(name) || module_.globals.count(name) != 0; }

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
    std::string const name = text_.word();
    std::string const rest = trimmed(text_.until(";"));
    text += name + " " + rest;
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
      if (o.kind == 'l') branch_labels_.emplace_back(kernel_.code.size(), o.label);
      for (std::uint32_t const id : o.ids) {
        registers_[id].used = true;
        if (matrix && registers_[id].kind == 'r' && registers_[id].constant < 0 && o.kind == '{') registers_[id].matrix = true;
        in.operands.push_back(id);
        (destination ? in.writes : in.reads).push_back(id);
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
      for (std::uint32_t& id : in.operands) id = registers_[id].slot;
      for (std::size_t i = 0; i < in.operands.size() && i < std::size(in.op); ++i) in.op[i] = in.operands[i];
      if (in.guard >= 0) in.guard = static_cast<std::int32_t>(registers_[static_cast<std::size_t>(in.guard)].slot);
    }
  }

  Module& module_;
  Kernel& kernel_;
  Text& text_;
  std::vector<std::map<std::string, std::uint32_t>> scopes_;
  std::map<std::string, char> families_;
  std::vector<Register> registers_;
  std::map<std::tuple<Constant::Kind, bool, std::uint64_t, std::string>, std::uint32_t> constants_;
  std::vector<Constant> pending_constants_;  // of the instruction being read
  std::map<std::string, std::uint32_t> labels_, form_numbers_;
  std::vector<std::pair<std::size_t, std::string>> branch_labels_;
  std::uint32_t file_ = 0, source_line_ = 0;
};

class ModuleLoader {
 public:
  explicit ModuleLoader(std::string_view ptx) : text_(ptx) {}

  Module load() {
    while (!text_.at_end()) statement();
    return std::move(module_);
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
    std::uint32_t alignment = 1, element_bytes = 1;
    std::string name;
    while (name.empty()) {
      std::string const word = text_.word();
      if (word == ".align") {
        alignment = static_cast<std::uint32_t>(std::stoul(text_.word()));
      } else if (word[0] == '.') {
        element_bytes = static_cast<std::uint32_t>(std::stoul(word.substr(2))) / 8;
      } else {
        name = word;
      }
    }
    std::size_t elements = 1;
    if (text_.take('[')) {
      std::string const count = trimmed(text_.until("]"));
      (void)text_.take(']');
      elements = count.empty() ? 0 : std::stoul(count);
    }
    if (shared) {
      if (elements != 0) refuse(line, "static shared memory is not known: " + name);
      module_.shared[name] = alignment;
      (void)text_.take(';');
      return;
    }
    GlobalVariable global{alignment, std::vector<std::uint8_t>(elements * element_bytes)};
    if (text_.take('=')) {
      std::string values = trimmed(text_.until(";"));
      if (values[0] == '{') values = values.substr(1, values.size() - 2);
      std::size_t at = 0;
      for (std::string const& part : split_operands(values)) {
        auto const number = literal(part);
        if (!number || at + element_bytes > global.bytes.size()) refuse(line, "bad initial value " + part + " of " + name);
        for (std::uint32_t b = 0; b < element_bytes; ++b) global.bytes[at++] = static_cast<std::uint8_t>(*number >> (8 * b));
      }
    }
    (void)text_.take(';');
    module_.globals[name] = std::move(global);
  }

  /// name(.param .align 128 .b8 name_param_0[896]) .maxntid 512, 1, 1 { ... }
  void entry() {
    std::uint32_t const line = text_.line();
    Kernel kernel;
    kernel.name = text_.word();
    (void)text_.take('(');
    std::istringstream parameter(text_.until(")"));
    (void)text_.take(')');
    for (std::string word; parameter >> word;) {
      if (word == ".align") {
        parameter >> kernel.parameter_alignment;
      } else if (word[0] != '.') {
        auto const open = word.find('[');
        if (open == std::string::npos || word.back() == ',' || !kernel.parameter.empty()) {
          refuse(line, kernel.name + " must have one parameter, a structure");
        }
        kernel.parameter = word.substr(0, open);
        kernel.parameter_bytes = static_cast<std::uint32_t>(std::stoul(word.substr(open + 1)));
      }
    }
    while (!text_.take('{')) {
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
    KernelLoader(module_, kernel, text_).load();
    std::string const name = kernel.name;
    module_.kernels.emplace(name, std::move(kernel));
  }

  Text text_;
  Module module_;
};

}  // namespace

Module load_module(std::string_view ptx) { return ModuleLoader(ptx).load(); }

Module load_module_file(std::string const& path) {
  std::ifstream in(path);
  if (!in) throw LoadError("cannot open " + path);
  std::stringstream text;
  text << in.rdbuf();
  return load_module(text.str());
}

}  // namespace vcattn::emulator
