// Aligned scratch memory that grows and is kept: a training step asks for the same sizes again and again, and fresh pages
// would cost more than the arithmetic done in them.
#pragma once
#include <cstdlib>
#include <memory>
#include <new>

namespace sparseopt {

class Scratch {
 public:
  template <class T>
  T* get(size_t count) {
    const size_t bytes = (count * sizeof(T) + kAlign - 1) / kAlign * kAlign + kAlign;
    if (bytes > size_) {
      size_ = 0, memory_.reset();
      memory_.reset(static_cast<char*>(std::aligned_alloc(kAlign, bytes)));
      if (!memory_) throw std::bad_alloc();
      size_ = bytes;
    }
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  static constexpr size_t kAlign = 64;
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> memory_;
  size_t size_ = 0;
};

// What a buffer is for: buffers of different use may be alive at once.
enum class Use { weights, pilot, input_rows, output_rows, block_sums, weight_sums, weight_totals, means, input_gradient, output_gradient };

// The calling thread's buffer for one use.
template <Use use>
Scratch& scratch() {
  static thread_local Scratch memory;
  return memory;
}

}  // namespace sparseopt
