// Memory of frozen networks: one arena a call or thread. Those that nobody uses are kept for the next call, of whatever network, but
// not more of them than the largest network has needed: memory does not grow with the number of networks or image sizes.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

namespace sparseopt {

class Arenas {
 public:
  struct Arena {
    struct Free {
      void operator()(float* p) const { std::free(p); }
    };
    std::unique_ptr<float, Free> memory;
    size_t bytes = 0;
    uint64_t owner = 0;
  };

  // An arena for as long as this lives. It is what its owner left, or zeros.
  class Lease {
   public:
    Lease(Arenas& from, uint64_t owner, size_t floats) : from_(from), arena_(from.take(owner, floats)) {}
    ~Lease() { from_.give(std::move(arena_)); }
    Lease(const Lease&) = delete;
    float* get() const { return arena_.memory.get(); }

   private:
    Arenas& from_;
    Arena arena_;
  };

  uint64_t new_owner() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return ++owners_;
  }

  void forget(uint64_t owner) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(free_, [&](const Arena& each) { return each.owner == owner; });
  }

 private:
  Arena take(uint64_t owner, size_t floats) {
    constexpr size_t kAlign = 64;
    const size_t bytes = (floats * sizeof(float) + kAlign - 1) / kAlign * kAlign;
    Arena arena;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto own = std::find_if(free_.rbegin(), free_.rend(), [&](const Arena& each) { return each.owner == owner; });
      const auto large = std::find_if(free_.rbegin(), free_.rend(), [&](const Arena& each) { return each.bytes >= bytes; });
      const bool crowded = kept() + bytes > kKeep + kept_for_largest();
      const auto found = own != free_.rend() ? own : crowded ? large : free_.rend();
      if (found != free_.rend()) {
        arena = std::move(*found);
        free_.erase(std::next(found).base());
      } else {
        while (!free_.empty() && kept() + bytes > kKeep + kept_for_largest()) free_.erase(free_.begin());
      }
      largest_ = std::max(largest_, bytes);
    }
    if (!arena.memory) {
      arena.memory.reset(static_cast<float*>(std::aligned_alloc(kAlign, bytes)));
      if (!arena.memory) throw std::bad_alloc();
      arena.bytes = bytes;
    }
    if (arena.owner != owner) std::memset(arena.memory.get(), 0, bytes), arena.owner = owner;
    return arena;
  }

  void give(Arena arena) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(arena));
  }

  size_t kept() const {
    size_t sum = 0;
    for (const Arena& each : free_) sum += each.bytes;
    return sum;
  }
  size_t kept_for_largest() const { return largest_ / 16; }

  static constexpr size_t kKeep = size_t(1) << 20;  // bytes that do not count
  std::mutex mutex_;
  std::vector<Arena> free_;  // the one used last is the last
  size_t largest_ = 0;
  uint64_t owners_ = 0;
};

inline Arenas& arenas() {
  static Arenas all;
  return all;
}

}  // namespace sparseopt
