// Threads: those of the OpenMP runtime that torch has loaded, so that there is one pool of them in the process. Its functions are
// looked up there at run time (`native/openmp.py`) rather than linked: which runtime it is, and under what name, is torch's choice.
// Where there is none, everything runs in the calling thread.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>

namespace sparseopt {

// As every OpenMP runtime on Linux exports them, in this order.
struct OpenMP {
  void (*parallel)(void (*body)(void*), void* data, unsigned threads, unsigned flags);
  void (*barrier)();
  int (*in_parallel)();
  int (*thread_num)();
  int (*num_threads)();
};

inline OpenMP openmp{};
inline thread_local int threads_wanted = 1;  // by the caller, see library.cpp
inline thread_local int number_in_loop = 0;

inline int num_threads() { return openmp.parallel ? threads_wanted : 1; }
inline int thread_num() { return number_in_loop; }
inline bool in_parallel_region() { return openmp.parallel && openmp.in_parallel(); }

// Until all threads of the team have come here.
inline void barrier() { openmp.barrier(); }

// Calls f(number, of) in every thread of a team of `size`, or of as many as can be had. Kernels throw for want of memory alone.
template <class F>
void in_team(int size, const F& f) {
  struct Team {
    const F& f;
    std::atomic<bool> failed;
  } team{f, false};
  const auto body = [](void* data) {
    Team& team = *static_cast<Team*>(data);
    try {
      team.f(openmp.thread_num(), openmp.num_threads());
    } catch (...) {
      team.failed = true;
    }
  };
  openmp.parallel(body, &team, unsigned(size), 0);
  if (team.failed) throw std::bad_alloc();
}

// The calling thread's number while this lives.
class Numbered {
 public:
  explicit Numbered(int number) : before_(number_in_loop) { number_in_loop = number; }
  ~Numbered() { number_in_loop = before_; }

 private:
  int before_;
};

// Calls f(begin, end) for parts of at least `grain` indices that make up [begin, end), one a thread. The parts follow from the number
// of threads alone.
template <class F>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const F& f) {
  if (begin >= end) return;
  const int64_t size = end - begin, most = (size + grain - 1) / grain;
  if (most == 1 || num_threads() == 1 || in_parallel_region()) return f(begin, end);
  // Always the whole team, though some may have nothing to do: a runtime ends the threads that a smaller team leaves over.
  in_team(num_threads(), [&](int number, int of) {
    const int64_t parts = std::min<int64_t>(of, most), part = (size + parts - 1) / parts, first = begin + number * part;
    if (first >= end) return;
    const Numbered as(number);
    f(first, std::min(end, first + part));
  });
}

}  // namespace sparseopt
