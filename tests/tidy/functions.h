// Finds function bodies in C and C++ by their braces, without parsing: comments, literals and
// directives are skipped, and a brace opens a function when what stands before it looks like a
// signature. Lambdas and blocks belong to the function around them.
#pragma once

#include <cctype>
#include <cstring>
#include <regex>
#include <string>
#include <vector>

namespace perch_test {

struct FunctionBody {
  size_t first_line;  // of the signature, from 0
  size_t num_lines;
};

class FunctionFinder {
 public:
  explicit FunctionFinder(const std::vector<std::string>& lines) {
    for (const std::string& line : lines) text_ += line + '\n';
  }

  std::vector<FunctionBody> find() {
    while (at_ < text_.size()) {
      if (!skip_what_is_no_code()) take(text_[at_++]);
    }
    return found_;
  }

 private:
  bool starts(const char* token) const {
    return text_.compare(at_, std::strlen(token), token) == 0;
  }

  // Moves behind the next `token`, counting lines.
  void skip_past(const std::string& token, size_t from) {
    const size_t found = text_.find(token, from);
    const size_t end = found == std::string::npos ? text_.size() : found + token.size();
    for (; at_ < end; ++at_) line_ += text_[at_] == '\n';
  }

  bool skip_what_is_no_code() {
    if (starts("//")) {
      skip_past("\n", at_);
    } else if (starts("/*")) {
      skip_past("*/", at_ + 2);
    } else if (starts("R\"")) {
      const size_t open = text_.find('(', at_);
      skip_past(")" + text_.substr(at_ + 2, open - at_ - 2) + "\"", open);
    } else if (text_[at_] == '#' && (at_ == 0 || text_[at_ - 1] == '\n')) {
      do skip_past("\n", at_);
      while (at_ >= 2 && at_ < text_.size() && text_[at_ - 2] == '\\');
    } else if (text_[at_] == '"' || (text_[at_] == '\'' && !in_number())) {
      size_t end = at_ + 1;
      while (end < text_.size() && text_[end] != text_[at_]) end += text_[end] == '\\' ? 2 : 1;
      at_ = end + 1;
    } else {
      return false;
    }
    return true;
  }

  bool in_number() const {
    return at_ > 0 && std::isalnum(static_cast<unsigned char>(text_[at_ - 1]));
  }

  void take(char c) {
    line_ += c == '\n';
    parentheses_ += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (c == '{') {
      const bool is_function = function_depth_ == 0 && looks_like_signature();
      if (is_function) {
        function_depth_ = depth_ + 1;
        function_line_ = statement_line_;
      }
      ++depth_;
    } else if (c == '}') {
      if (depth_ == function_depth_) {
        found_.push_back({function_line_, line_ - function_line_ + 1});
        function_depth_ = 0;
      }
      --depth_;
    }
    if (c == '{' || c == '}' || (c == ';' && parentheses_ == 0)) {
      statement_.clear();
    } else if (!std::isspace(static_cast<unsigned char>(c)) || !statement_.empty()) {
      if (statement_.empty()) statement_line_ = line_;
      // What stands in parentheses is not looked at: default arguments hold '='.
      if (parentheses_ == 0 || c == '(') statement_ += c;
    }
  }

  bool looks_like_signature() const {
    static const std::regex other(R"(^(typedef |static |inline )*(namespace|enum|extern *$))");
    if (statement_.find(')') == std::string::npos) return false;
    if (std::regex_search(statement_, other)) return false;
    return statement_.find('=') == std::string::npos ||
           statement_.find("operator") != std::string::npos;
  }

  std::string text_;
  size_t at_ = 0, line_ = 0;
  int depth_ = 0, parentheses_ = 0;
  std::string statement_;  // since the last ; { or }
  size_t statement_line_ = 0;
  int function_depth_ = 0;  // of the braces of the function we are in; 0: in none
  size_t function_line_ = 0;
  std::vector<FunctionBody> found_;
};

}  // namespace perch_test
