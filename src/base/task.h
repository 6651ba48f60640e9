// Work to run later, once. Unlike std::function, it is move-only and contains closures of the usual size itself, so
// that storing it allocates no memory.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace seqpar {

/// memory_ is not initialized: without work, it is not read.
class Task {  // NOLINT(cppcoreguidelines-pro-type-member-init)
 public:
  Task() = default;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  template <typename Work>
  requires(!std::is_same_v<std::remove_cvref_t<Work>, Task> && std::is_invocable_v<std::decay_t<Work>&>)
      // NOLINTNEXTLINE(google-explicit-constructor,bugprone-forwarding-reference-overload,*-member-init): constrained
      Task(Work&& work) {
    using Stored = std::decay_t<Work>;
    if constexpr (sizeof(Stored) <= kBytes && alignof(Stored) <= alignof(std::max_align_t) &&
                  std::is_nothrow_move_constructible_v<Stored>) {
      ::new (static_cast<void*>(memory_)) Stored(std::forward<Work>(work));
      actions_ = &kActions<Stored>;
    } else {
      auto boxed = [box = std::make_unique<Stored>(std::forward<Work>(work))] { (*box)(); };
      ::new (static_cast<void*>(memory_)) decltype(boxed)(std::move(boxed));
      actions_ = &kActions<decltype(boxed)>;
    }
  }
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init)
  Task(Task&& other) noexcept : actions_(std::exchange(other.actions_, nullptr)) {
    if (actions_ != nullptr) actions_->move(other.memory_, memory_);
  }
  Task& operator=(Task&& other) noexcept {
    if (this == &other) return *this;
    reset();
    actions_ = std::exchange(other.actions_, nullptr);
    if (actions_ != nullptr) actions_->move(other.memory_, memory_);
    return *this;
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  ~Task() { reset(); }

  /// Requires work.
  void operator()() { actions_->run(memory_); }
  /// Destroys the work.
  void reset() noexcept {
    if (actions_ != nullptr) std::exchange(actions_, nullptr)->destroy(memory_);
  }

 private:
  /// For the operations of collectives: their largest closures have about 150 bytes.
  static constexpr std::size_t kBytes = 184;

  struct Actions {
    void (*run)(void* work);
    void (*move)(void* from, void* to) noexcept;  ///< also destroys `from`
    void (*destroy)(void* work) noexcept;
  };
  template <typename Stored>
  static constexpr Actions kActions{[](void* work) { (*static_cast<Stored*>(work))(); },
                                    [](void* from, void* to) noexcept {
                                      ::new (to) Stored(std::move(*static_cast<Stored*>(from)));
                                      static_cast<Stored*>(from)->~Stored();
                                    },
                                    [](void* work) noexcept { static_cast<Stored*>(work)->~Stored(); }};

  const Actions* actions_ = nullptr;
  alignas(std::max_align_t) std::byte memory_[kBytes];
};

/// A first-in, first-out queue of tasks. One task at a time is claimed to run. Its memory grows and is reused.
class TaskQueue {
 public:
  /// Without the claimed task.
  bool empty() const { return first_ == end_; }
  void push(Task&& task) {
    if (end_ - first_ + (claimed_ ? 1 : 0) >= capacity_) grow();
    tasks_[end_++ % capacity_] = std::move(task);
  }
  /// The first task, which leaves the queue. Requires a task and none claimed. Stays at its address until release().
  Task& claim() {
    claimed_ = true;
    return tasks_[first_++ % capacity_];
  }
  /// Reuses the memory of the claimed task, which must have been reset.
  void release() {
    claimed_ = false;
    retired_.reset();
  }

 private:
  void grow() {
    const std::size_t more = capacity_ == 0 ? 16 : 2 * capacity_;
    auto tasks = std::make_unique<Task[]>(more);
    for (std::size_t i = first_; i < end_; ++i) tasks[i - first_] = std::move(tasks_[i % capacity_]);
    end_ -= first_;
    first_ = 0;
    std::swap(tasks_, tasks);
    capacity_ = more;
    if (claimed_ && retired_ == nullptr) retired_ = std::move(tasks);
  }

  std::unique_ptr<Task[]> tasks_;
  std::unique_ptr<Task[]> retired_;  ///< former memory, with the claimed task
  std::size_t capacity_ = 0, first_ = 0, end_ = 0;
  bool claimed_ = false;
};

}  // namespace seqpar
