// One child process that speaks lines: what runs in it, what it said, how it ended.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace perch_check {

class Child {
 public:
  // `work` runs in the child and says lines through its argument; then the child exits.
  using Say = std::function<void(const std::string& line)>;
  explicit Child(const std::function<void(const Say&)>& work);
  ~Child();  // kills and reaps what still runs
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int file() const { return pipe_; }
  // Complete lines that have arrived. Never blocks; notices when the child has ended, also while
  // somebody whom it left behind holds the pipe open.
  std::vector<std::string> read_lines();
  bool ended() const { return ended_; }
  bool clean() const { return clean_; }  // it exited with 0
  // It ended and a process of its making went on; that one has been killed.
  bool left_process() const { return left_process_; }
  void kill_now();  // with all of its making
  // How it died, in words: the signal, the buffer that a fault belongs to, what it wrote on stderr.
  std::string epitaph() const;

 private:
  void reap();

  pid_t pid_ = -1;
  int pipe_ = -1;
  int error_file_ = -1;
  std::string partial_, fault_;
  bool ended_ = false;
  bool clean_ = false;
  bool left_process_ = false;
  int wait_status_ = 0;
};

// Gives each line to `hear` until the child has ended; false when it has said nothing for
// `timeout_s` seconds, and has been killed.
bool listen(Child* child, double timeout_s, const std::function<void(const std::string&)>& hear);

}  // namespace perch_check
