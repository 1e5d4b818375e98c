// Random edits of an input. Of bytes, for builds without a fuzzer: that finds what lies beside the
// seeds, libFuzzer what lies further off. And of words, for targets that read text: there libFuzzer
// calls it too, for one that knows bytes only seldom writes a key that fits its place.
#pragma once

#include <cctype>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz.h"

namespace perch::fuzz {

// std::mt19937's numbers are the same everywhere; a distribution's are not.
inline size_t below(size_t count, std::mt19937& random) {
  return random() % std::max<size_t>(count, 1);
}

inline void edit_bytes(std::string& text, std::mt19937& random) {
  const auto byte = static_cast<char>(random());
  const size_t at = below(text.size(), random);
  if (text.empty()) {
    text += byte;
    return;
  }
  switch (below(6, random)) {
    case 0:
      text[at] = byte;
      break;
    case 1:
      text[at] = static_cast<char>(text[at] ^ (1 << below(8, random)));
      break;
    case 2:
      text[at] = static_cast<char>('0' + below(10, random));
      break;
    case 3:
      text.insert(at, 1, byte);
      break;
    case 4:
      text.erase(at, 1);
      break;
    default:
      text.insert(at, text.substr(at, 1 + below(16, random)));
  }
}

// Where pieces of the text begin: words and what stands between them, or `wide`, what spaces part.
// Both ends are among it.
inline std::vector<size_t> boundaries(std::string_view text, bool wide) {
  const auto in_word = [&](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return wide ? std::isspace(byte) == 0 : std::isalnum(byte) != 0;
  };
  std::vector<size_t> all = {0};
  for (size_t i = 1; i < text.size(); ++i) {
    if (in_word(text[i]) != in_word(text[i - 1])) all.push_back(i);
  }
  all.push_back(text.size());
  return all;
}

// Puts one of `words` before or in place of a piece of the text, or repeats or drops a piece.
inline void edit_words(std::string& text, std::span<const std::string_view> words,
                       std::mt19937& random) {
  const std::vector<size_t> bounds = boundaries(text, below(2, random) == 0);
  const size_t index = below(bounds.size() - 1, random);
  const size_t begin = bounds[index];
  const size_t size = bounds[index + 1] - begin;
  const std::string word(words[below(words.size(), random)]);
  switch (below(4, random)) {
    case 0:
      text.insert(bounds[below(bounds.size(), random)], word);
      break;
    case 1:
      text.replace(begin, size, word);
      break;
    case 2:
      text.insert(bounds[below(bounds.size(), random)], text.substr(begin, size));
      break;
    default:
      text.erase(begin, size);
  }
}

inline std::string mutate(std::string text, std::span<const std::string_view> words,
                          std::mt19937& random) {
  for (size_t edits = 1 + below(3, random); edits > 0; --edits) {
    if (!words.empty() && below(2, random) == 0) {
      edit_words(text, words, random);
    } else {
      edit_bytes(text, random);
    }
  }
  return text;
}

}  // namespace perch::fuzz

#if !defined(PERCH_FUZZ_CORPUS_TEST)
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t capacity);

namespace perch::fuzz {

// Some texts that were taken: the first ones, which are the seeds, and some of the latest.
// libFuzzer keeps what reaches new code, mostly the many ways to be refused: what grows from those
// alone is soon all refused.
constexpr size_t kFirstTexts = 64;
constexpr size_t kLatestTexts = 64;
inline std::vector<std::string>& taken_texts() {
  static std::vector<std::string> texts;
  return texts;
}

inline void run_text(void (*function)(Bytes), Bytes bytes) {
  static std::mt19937 random;  // from its default seed: the same in every run
  notes() = {};
  function(bytes);
  if (!notes().accepted) return;
  std::vector<std::string>& texts = taken_texts();
  if (texts.size() < kFirstTexts + kLatestTexts) {
    texts.emplace_back(text_of(bytes));
  } else {
    texts[kFirstTexts + below(kLatestTexts, random)] = text_of(bytes);
  }
}

// What libFuzzer calls in place of its own edits: those, or ours, also of a text that was taken.
inline size_t mutate_text(std::span<uint8_t> data, size_t size, unsigned seed,
                          std::span<const std::string_view> words) {
  std::mt19937 random(seed);
  const size_t choice = below(3, random);
  if (choice == 0) return LLVMFuzzerMutate(data.data(), size, data.size());
  std::string text(text_of(data.first(size)));
  const std::vector<std::string>& texts = taken_texts();
  if (choice == 1 && !texts.empty()) text = texts[below(texts.size(), random)];
  edit_words(text, words, random);
  const size_t kept = std::min(text.size(), data.size());
  std::copy_n(text.begin(), kept, data.begin());
  return kept;
}

}  // namespace perch::fuzz
#endif
