// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/regex_automaton.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "io/tokenizer/regex_parser.h"
#include "io/tokenizer/unicode.h"

namespace anabatic::io::tokenizer {
namespace {

constexpr char32_t kCharacters = 0x110000;
constexpr std::size_t kMaxClasses = 250;
constexpr std::size_t kMaxPlaces = 1000;
constexpr std::size_t kMaxStates = 512;

bool is_surrogate(char32_t c) { return c >= 0xD800 && c < 0xE000; }

// Whether the characters from each of the atom's bounds on match.
std::vector<bool> evaluate(const RegexAtom& atom) {
  const Regex regex(atom.pattern, "[tokenizer] a part of a pattern", Regex::Engine::kOniguruma);
  RegexScratch scratch;
  std::vector<bool> matches;
  std::string text;
  for (const char32_t c : atom.bounds) {
    Match match;
    text.clear();
    if (c < kCharacters && !is_surrogate(c)) append_utf8(text, c);
    matches.push_back(!text.empty() && regex.find(text, 0, scratch, match) && match.begin == 0 &&
                      match.end == text.size());
  }
  return matches;
}

}  // namespace

class AutomatonBuilder {
 public:
  explicit AutomatonBuilder(const ParsedRegex& parsed) : atoms_(parsed.atoms) {
    find_classes();
    const std::size_t match = add({.kind = Place::Kind::kMatch});
    start_ = compile(parsed.root, match);
    if (!has_failed_) fill_table();
  }

  std::unique_ptr<const RegexAutomaton> take() {
    return has_failed_ ? nullptr : std::move(automaton_);
  }

 private:
  // A place in the pattern; a split prefers its first way.
  struct Place {
    enum class Kind { kAtom, kSplit, kAhead, kMatch };
    Kind kind = Kind::kMatch;
    std::size_t atom = 0;
    bool is_negated = false;
    std::size_t first = 0;
    std::size_t second = 0;
  };
  using State = std::vector<std::size_t>;  // places in order of preference

  std::size_t add(Place place) {
    if (places_.size() >= kMaxPlaces) {
      has_failed_ = true;
      return 0;
    }
    places_.push_back(place);
    return places_.size() - 1;
  }

  void find_classes() {
    std::vector<std::vector<bool>> matches;
    std::vector<char32_t> bounds;
    for (const RegexAtom& atom : atoms_) {
      matches.push_back(evaluate(atom));
      bounds.insert(bounds.end(), atom.bounds.begin(), atom.bounds.end());
    }
    bounds.push_back(0);
    std::sort(bounds.begin(), bounds.end());
    bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
    std::vector<std::size_t> at(atoms_.size(), 0);
    std::map<std::vector<bool>, std::size_t> numbers;
    std::vector<std::uint8_t> classes;  // from each bound on
    for (const char32_t bound : bounds) {
      std::vector<bool> member(atoms_.size());
      for (std::size_t a = 0; a < atoms_.size(); ++a) {
        const std::vector<char32_t>& own = atoms_[a].bounds;
        while (at[a] + 1 < own.size() && own[at[a] + 1] <= bound) ++at[a];
        member[a] = matches[a][at[a]];
      }
      const auto [found, is_new] = numbers.try_emplace(member, numbers.size());
      if (is_new) members_.push_back(member);
      if (numbers.size() > kMaxClasses) {
        has_failed_ = true;
        return;
      }
      classes.push_back(static_cast<std::uint8_t>(found->second));
    }
    members_.emplace_back(atoms_.size(), false);  // the end of the text
    store_classes(bounds, classes);
  }

  // Most blocks are of one class, or of the same ones as another.
  void store_classes(const std::vector<char32_t>& bounds,
                     const std::vector<std::uint8_t>& classes) {
    constexpr std::size_t kBlock = RegexAutomaton::kBlock;
    std::map<std::string, std::uint16_t> known;
    std::array<int, 256> uniform;
    uniform.fill(-1);
    std::size_t i = 0;
    for (char32_t c = 0; c < kCharacters; c += kBlock) {
      while (i + 1 < bounds.size() && bounds[i + 1] <= c) ++i;
      const bool is_uniform = i + 1 == bounds.size() || bounds[i + 1] >= c + kBlock;
      int& number = uniform[classes[i]];
      if (is_uniform && number >= 0) {
        automaton_->block_of_.push_back(static_cast<std::uint16_t>(number));
        continue;
      }
      std::string block(kBlock, '\0');
      std::size_t j = i;
      for (std::size_t k = 0; k < kBlock; ++k) {
        while (j + 1 < bounds.size() && bounds[j + 1] <= c + k) ++j;
        block[k] = static_cast<char>(classes[j]);
      }
      const auto [found, is_new] =
          known.try_emplace(block, static_cast<std::uint16_t>(known.size()));
      if (is_new) automaton_->blocks_.insert(automaton_->blocks_.end(), block.begin(), block.end());
      automaton_->block_of_.push_back(found->second);
      if (is_uniform) number = found->second;
    }
    std::copy_n(automaton_->blocks_.begin() + automaton_->block_of_[0] * kBlock,
                automaton_->ascii_.size(), automaton_->ascii_.begin());
    automaton_->width_ = members_.size();
  }

  // The place where matching `node` and then `next` begins.
  std::size_t compile(const RegexNode& node, std::size_t next) {
    if (has_failed_) return 0;
    switch (node.kind) {
      case RegexNode::Kind::kAtom:
        return add({.kind = Place::Kind::kAtom, .atom = node.atom, .first = next});
      case RegexNode::Kind::kAhead:
        return add({.kind = Place::Kind::kAhead,
                    .atom = node.atom,
                    .is_negated = node.is_negated,
                    .first = next});
      case RegexNode::Kind::kSequence:
        for (auto child = node.children.rbegin(); child != node.children.rend(); ++child)
          next = compile(*child, next);
        return next;
      case RegexNode::Kind::kAlternatives: {
        std::size_t result = compile(node.children.back(), next);
        for (std::size_t i = node.children.size() - 1; i-- > 0;) {
          const std::size_t first = compile(node.children[i], next);
          result = add({.kind = Place::Kind::kSplit, .first = first, .second = result});
        }
        return result;
      }
      case RegexNode::Kind::kRepeat:
        break;
    }
    return compile_repeat(node, next);
  }

  std::size_t compile_repeat(const RegexNode& node, std::size_t next) {
    const RegexNode& child = node.children[0];
    if (node.preference == RegexNode::Preference::kPossessive && !never_gives_back(child, next))
      has_failed_ = true;
    const bool is_lazy = node.preference == RegexNode::Preference::kLazy;
    const auto split = [&](std::size_t place, std::size_t body) {
      places_[place] = {.kind = Place::Kind::kSplit,
                        .first = is_lazy ? next : body,
                        .second = is_lazy ? body : next};
    };
    std::size_t result = next;
    if (node.max == RegexNode::kUnbounded) {
      result = add({.kind = Place::Kind::kAhead});  // until the body is known
      is_open_.push_back(result);
      const std::size_t body = compile(child, result);
      is_open_.pop_back();
      if (has_failed_) return 0;
      split(result, body);
    }
    for (int i = node.min; i < node.max && !has_failed_; ++i) {
      const std::size_t body = compile(child, result);
      result = add({});
      if (!has_failed_) split(result, body);
    }
    for (int i = 0; i < node.min && !has_failed_; ++i) result = compile(child, result);
    return result;
  }

  // A possessive repetition of one character equals a greedy one if what follows cannot begin with
  // that character, or can always be empty.
  bool never_gives_back(const RegexNode& child, std::size_t next) const {
    if (child.kind != RegexNode::Kind::kAtom) return false;
    std::vector<std::size_t> open = {next};
    std::vector<bool> is_seen(places_.size(), false);
    bool is_disjoint = true;
    while (!open.empty()) {
      const std::size_t at = open.back();
      open.pop_back();
      if (is_seen[at]) continue;
      is_seen[at] = true;
      if (std::find(is_open_.begin(), is_open_.end(), at) != is_open_.end()) return false;
      const Place& place = places_[at];
      if (place.kind == Place::Kind::kAhead) return false;
      if (place.kind == Place::Kind::kSplit) {
        open.push_back(place.first);
        open.push_back(place.second);
      } else if (place.kind == Place::Kind::kMatch) {
        return true;
      } else {
        for (const std::vector<bool>& member : members_)
          is_disjoint = is_disjoint && !(member[child.atom] && member[place.atom]);
      }
    }
    return is_disjoint;
  }

  // Adds the places after `symbol` to `next`. True if the match may end here, so that nothing
  // less preferred counts.
  bool follow(std::size_t at, std::size_t symbol, State& next) {
    if (round_of_[at] == round_) return false;
    round_of_[at] = round_;
    const Place& place = places_[at];
    switch (place.kind) {
      case Place::Kind::kMatch:
        return true;
      case Place::Kind::kSplit:
        return follow(place.first, symbol, next) || follow(place.second, symbol, next);
      case Place::Kind::kAhead:
        return members_[symbol][place.atom] != place.is_negated &&
               follow(place.first, symbol, next);
      case Place::Kind::kAtom:
        break;
    }
    if (members_[symbol][place.atom] &&
        std::find(next.begin(), next.end(), place.first) == next.end())
      next.push_back(place.first);
    return false;
  }

  void fill_table() {
    std::map<State, std::size_t> numbers = {{{}, 0}, {{start_}, 1}};
    std::vector<State> states = {{}, {start_}};
    round_of_.assign(places_.size(), 0);
    for (std::size_t s = 0; s < states.size(); ++s) {
      for (std::size_t symbol = 0; symbol < members_.size(); ++symbol) {
        State next;
        bool is_match = false;
        ++round_;
        const State state = states[s];
        for (std::size_t i = 0; i < state.size() && !is_match; ++i)
          is_match = follow(state[i], symbol, next);
        const auto [found, is_new] = numbers.try_emplace(next, states.size());
        if (is_new) states.push_back(next);
        automaton_->table_.push_back(static_cast<std::uint32_t>(2 * found->second + is_match));
      }
      if (states.size() > kMaxStates) {
        has_failed_ = true;
        return;
      }
    }
  }

  const std::vector<RegexAtom>& atoms_;
  std::unique_ptr<RegexAutomaton> automaton_ = std::make_unique<RegexAutomaton>();
  std::vector<std::vector<bool>> members_;  // [class or end, atom]
  std::vector<Place> places_;
  std::vector<std::size_t> is_open_;  // loops whose body is being compiled
  std::size_t start_ = 0;
  bool has_failed_ = false;
  std::vector<std::size_t> round_of_;
  std::size_t round_ = 0;
};

std::unique_ptr<const RegexAutomaton> RegexAutomaton::build(std::string_view pattern) {
  const auto parsed = parse_regular(pattern);
  return parsed ? AutomatonBuilder(*parsed).take() : nullptr;
}

bool RegexAutomaton::find(std::string_view text, std::size_t start, Match& match) const {
  const std::size_t size = text.size();
  for (std::size_t begin = start;;) {
    std::size_t at = begin;
    std::size_t end = std::string_view::npos;
    for (std::size_t state = 1; state != 0;) {
      std::size_t length = 1;
      std::size_t symbol = width_ - 1;
      if (at < size) {
        const auto lead = static_cast<unsigned char>(text[at]);
        symbol = lead < 0x80 ? ascii_[lead] : class_of(decode_utf8(text, at, length));
      }
      const std::uint32_t entry = table_[state * width_ + symbol];
      if (entry & 1) end = at;
      state = entry >> 1;
      at += length;
    }
    if (end != std::string_view::npos) {
      match = {begin, end};
      return true;
    }
    if (begin >= size) return false;
    begin += utf8_length(static_cast<unsigned char>(text[begin]));
  }
}

}  // namespace anabatic::io::tokenizer
