#include "check/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "check/memory.h"

namespace perch_check {
namespace {

constexpr const char* kFaultMark = "!fault ";
int fault_pipe = -1;  // of this process, when it is a child

// Whether the fault was a write, where the CPU says so.
const char* access_of(void* context) {
#if defined(__x86_64__)
  const auto* state = static_cast<const ucontext_t*>(context);
  return (state->uc_mcontext.gregs[REG_ERR] & 2) != 0 ? "written" : "read";
#else
  static_cast<void>(context);
  return "touched";
#endif
}

// Says what was touched, then dies by the same signal. snprintf into a buffer of the stack: the
// process is lost anyhow.
void on_fault(int number, siginfo_t* info, void* context) {
  const FaultPlace place = find_fault(info->si_addr);
  char text[256];
  int length = 0;
  if (place.name != nullptr) {
    length = std::snprintf(text, sizeof(text), "%s%s (%lld bytes): %s at offset %lld\n", kFaultMark,
                           place.name, static_cast<long long>(place.size), access_of(context),
                           static_cast<long long>(place.offset));
  } else {
    length = std::snprintf(text, sizeof(text), "%saddress %p, in no buffer of a call, %s\n",
                           kFaultMark, info->si_addr, access_of(context));
  }
  if (length > 0 && write(fault_pipe, text, static_cast<size_t>(length)) < 0) _exit(125);
  signal(number, SIG_DFL);
  raise(number);
}

void catch_faults() {
  static char stack[64 * 1024];  // a fault may be the stack's own end
  stack_t other{};
  other.ss_sp = stack;
  other.ss_size = sizeof(stack);
  sigaltstack(&other, nullptr);
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) sigaction(number, &action, nullptr);
}

void write_all(int file, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t written = write(file, text.data() + at, text.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) _exit(125);
    at += static_cast<size_t>(written);
  }
}

}  // namespace

Child::Child(const std::function<void(const Say&)>& work) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("pipe: " + std::string(std::strerror(errno)));
  error_file_ = memfd_create("perch-check-stderr", MFD_CLOEXEC);
  std::fflush(nullptr);
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork: " + std::string(std::strerror(errno)));
  if (pid_ > 0) {
    setpgid(pid_, pid_);  // here and there: whoever is first
    close(ends[1]);
    pipe_ = ends[0];
    fcntl(pipe_, F_SETFL, O_NONBLOCK);
    return;
  }
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  close(ends[0]);
  // What a backend prints is no report of ours.
  if (error_file_ >= 0) {
    dup2(error_file_, STDERR_FILENO);
    dup2(error_file_, STDOUT_FILENO);
  }
  fault_pipe = ends[1];
  catch_faults();
  work([&](const std::string& line) { write_all(ends[1], line + "\n"); });
  _exit(0);
}

Child::~Child() {
  if (!ended_) {
    kill_now();
    reap();
  }
  if (error_file_ >= 0) close(error_file_);
}

std::vector<std::string> Child::read_lines() {
  // Asked before reading: what the child said before its end is then in the pipe.
  siginfo_t info{};
  const bool gone =
      waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
      info.si_pid == pid_;
  char buffer[65536];
  ssize_t got = 0;
  while ((got = read(pipe_, buffer, sizeof(buffer))) > 0) {
    partial_.append(buffer, static_cast<size_t>(got));
  }
  const bool open = got < 0 && (errno == EAGAIN || errno == EINTR);
  left_process_ = gone && open;
  std::vector<std::string> lines;
  for (size_t end = 0; (end = partial_.find('\n')) != std::string::npos;) {
    std::string line = partial_.substr(0, end);
    partial_.erase(0, end + 1);
    if (line.rfind(kFaultMark, 0) == 0) {
      fault_ = line.substr(std::strlen(kFaultMark));
    } else {
      lines.push_back(std::move(line));
    }
  }
  if (gone || !open) reap();
  return lines;
}

void Child::kill_now() { kill(-pid_, SIGKILL); }

void Child::reap() {
  kill(-pid_, SIGKILL);  // a group lives as long as one of its members
  if (pipe_ >= 0) close(pipe_);
  pipe_ = -1;
  while (waitpid(pid_, &wait_status_, 0) < 0 && errno == EINTR) continue;
  ended_ = true;
  clean_ = WIFEXITED(wait_status_) && WEXITSTATUS(wait_status_) == 0;
}

std::string Child::epitaph() const {
  std::string text = WIFSIGNALED(wait_status_)
                         ? fmt::format("{}", strsignal(WTERMSIG(wait_status_)))
                         : fmt::format("exit code {}", WEXITSTATUS(wait_status_));
  if (!fault_.empty()) text += ": " + fault_;
  if (error_file_ < 0) return text;
  char said[400];
  const ssize_t got = pread(error_file_, said, sizeof(said), 0);
  std::string line(said, got < 0 ? 0 : static_cast<size_t>(got));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 32) c = ' ';
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line.empty() ? text : text + ": " + line;
}

bool listen(Child* child, double timeout_s, const std::function<void(const std::string&)>& hear) {
  using Clock = std::chrono::steady_clock;
  const auto patience = std::chrono::milliseconds(static_cast<int64_t>(1000 * timeout_s));
  auto deadline = Clock::now() + patience;
  bool in_time = true;
  while (!child->ended()) {
    pollfd file{child->file(), POLLIN, 0};
    poll(&file, 1, 100);
    const std::vector<std::string> lines = child->read_lines();
    if (!lines.empty()) deadline = Clock::now() + patience;
    for (const std::string& line : lines) hear(line);
    if (in_time && Clock::now() > deadline) {
      in_time = false;
      child->kill_now();
    }
  }
  return in_time;
}

}  // namespace perch_check
