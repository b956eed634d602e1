// Ring: order and content under random sizes, full and empty, in one thread and in two, and against a hostile other side.
#include "ring.h"

#include <atomic>
#include <cstring>
#include <deque>
#include <thread>
#include <vector>

#include "check.h"
#include "random.h"

namespace memsvc {
namespace {

struct Memory {
  explicit Memory(size_t capacity) : capacity(capacity), bytes(Ring::kHeadBytes + capacity + 64) {
    at = bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64;
  }
  uint64_t& written() { return *reinterpret_cast<uint64_t*>(at); }
  uint64_t& read() { return *reinterpret_cast<uint64_t*>(at + 64); }
  Ring ring() { return Ring(at, capacity); }
  size_t capacity;
  std::vector<uint8_t> bytes;
  uint8_t* at;
};

constexpr size_t kSmall = Ring::kLeastBytes;

void fill(uint8_t* to, size_t bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes; ++i) to[i] = static_cast<uint8_t>(seed * 31 + i * 7);
}

bool holds(const uint8_t* from, size_t bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes; ++i) {
    if (from[i] != static_cast<uint8_t>(seed * 31 + i * 7)) return false;
  }
  return true;
}

void any_order_of_calls(uint64_t seed, size_t rounds) {
  Memory memory(kSmall + 64 * (seed % 50));
  Ring in = memory.ring(), out = memory.ring();
  Random random(seed);
  std::deque<std::pair<size_t, uint64_t>> model;  // size (0: a mark), seed
  uint64_t made = 0;
  for (size_t round = 0; round < rounds; ++round) {
    const uint64_t choice = random.next() % 16;
    if (choice < 8) {
      const size_t bytes = 1 + random.next() % (choice < 6 ? 300 : in.most());
      uint8_t* to = in.reserve(bytes);
      if (model.empty()) CHECK(to != nullptr);  // what fits at all fits into an empty ring
      if (to == nullptr) continue;
      CHECK_EQ(reinterpret_cast<uintptr_t>(to) % 64, 0u);
      const size_t less = bytes - random.next() % bytes / 2;
      fill(to, less, ++made);
      CHECK(!in.commit(less));
      model.emplace_back(less, made);
    } else if (choice == 8) {
      if (in.mark()) model.emplace_back(0, 0);
    } else {
      const Ring::Front front = out.front();
      CHECK_EQ(front == Ring::Front::kNone, model.empty());
      if (model.empty()) continue;
      CHECK_EQ(front == Ring::Front::kMark, model.front().first == 0);
      CHECK_EQ(out.size(), model.front().first);
      if (model.front().first > 0) CHECK(holds(out.data(), out.size(), model.front().second));
      CHECK(out.front() == front);  // looking changes nothing
      out.pop();
      model.pop_front();
    }
    CHECK(!in.broken() && !out.broken());
  }
}

void a_full_ring_takes_marks() {
  Memory memory(kSmall);
  Ring in = memory.ring(), out = memory.ring();
  size_t messages = 0, marks = 0;
  while (in.reserve(100) != nullptr) {
    in.commit(100);
    ++messages;
  }
  while (in.mark()) ++marks;
  CHECK(messages > 60);
  CHECK(marks >= 64);
  for (size_t i = 0; i < messages + marks; ++i) {
    CHECK(out.front() == (i < messages ? Ring::Front::kMessage : Ring::Front::kMark));
    out.pop();
  }
  CHECK(out.front() == Ring::Front::kNone);
  CHECK(in.reserve(in.most()) != nullptr);
  CHECK(in.reserve(in.most() + 1) == nullptr);
  CHECK(in.reserve(0) == nullptr);
  CHECK(!in.commit(1));  // nothing is reserved any more
  CHECK(out.front() == Ring::Front::kNone);
}

void an_emptied_ring_begins_anew() {
  Memory memory(1 << 20);
  Ring in = memory.ring(), out = memory.ring();
  size_t farthest = 0;
  for (int i = 0; i < 5000; ++i) {
    uint8_t* to = in.reserve(1000);
    farthest = std::max(farthest, static_cast<size_t>(to - memory.at));
    in.commit(1000);
    CHECK(out.front() == Ring::Front::kMessage);
    out.pop();
  }
  CHECK(farthest < (1 << 18) + 2048);
}

void sleepers_are_woken_once() {
  Memory memory(kSmall);
  Ring in = memory.ring(), out = memory.ring();
  CHECK(!out.spin(10));
  CHECK(out.doze());
  in.reserve(10);
  CHECK(in.commit(10));
  CHECK(out.spin(10));
  in.reserve(10);
  CHECK(!in.commit(10));
  CHECK(!out.doze());
  in.reserve(10);
  CHECK(!in.commit(10));
  for (int i = 0; i < 3; ++i) {
    CHECK(out.front() == Ring::Front::kMessage);
    out.pop();
  }
  CHECK(out.doze());
  CHECK(in.mark());
  CHECK(in.sleeper());
  CHECK(!in.sleeper());
}

void what_cannot_be_breaks_it() {
  for (const uint64_t size : {uint64_t{0}, uint64_t{1} << 40, ~uint64_t{0} - 5, ~uint64_t{0}, uint64_t{kSmall}}) {
    Memory memory(kSmall);
    Ring in = memory.ring(), out = memory.ring();
    in.reserve(100);
    in.commit(100);
    std::memcpy(memory.at + Ring::kHeadBytes, &size, 8);
    CHECK(out.front() == Ring::Front::kNone);
    CHECK(out.broken());
  }
  for (const uint64_t written : {uint64_t{kSmall} + 64, uint64_t{63}, ~uint64_t{0}, uint64_t{1} << 63}) {
    Memory memory(kSmall);
    Ring out = memory.ring();
    memory.written() = written;
    CHECK(out.front() == Ring::Front::kNone);
    CHECK(out.broken());
  }
  for (const uint64_t read : {uint64_t{64}, ~uint64_t{0} - 63 - kSmall, uint64_t{1} << 63}) {
    Memory memory(kSmall);
    Ring in = memory.ring();
    memory.read() = read;
    CHECK(in.reserve(10) == nullptr);
    CHECK(in.broken());
  }
}

void noise(uint64_t seed, size_t rounds) {
  Random random(seed);
  for (size_t round = 0; round < rounds; ++round) {
    Memory memory(kSmall);
    Ring in = memory.ring(), out = memory.ring();
    for (int i = 0; i < 20; ++i) {
      if (in.reserve(1 + random.next() % 400) != nullptr) in.commit(1);
    }
    for (int i = 0; i < 4; ++i) memory.at[random.next() % (i < 2 ? 128 : 4096)] = static_cast<uint8_t>(random.next());
    size_t sum = 0;
    for (int i = 0; i < 1000 && out.front() != Ring::Front::kNone; ++i) {
      for (size_t k = 0; k < out.size(); ++k) sum += out.data()[k];  // the sanitizers see whether this is inside
      out.pop();
    }
    CHECK(sum < ~size_t{0});
  }
}

void two_threads(size_t messages) {
  Memory memory(kSmall + 640);
  std::atomic<bool> wake{false};
  std::thread producer([&] {
    Ring in = memory.ring();
    Random random(1);
    for (uint64_t i = 0; i < messages; ++i) {
      const size_t bytes = 8 + random.next() % 500;
      uint8_t* to = nullptr;
      while ((to = in.reserve(bytes)) == nullptr) std::this_thread::yield();
      fill(to, bytes, i);
      if (in.commit(bytes)) wake.store(true);
    }
  });
  Ring out = memory.ring();
  Random random(1);
  for (uint64_t i = 0; i < messages; ++i) {
    while (out.front() == Ring::Front::kNone) {
      if (!out.doze()) continue;
      while (!wake.exchange(false)) std::this_thread::yield();  // who sleeps here for ever was not woken
    }
    const size_t bytes = 8 + random.next() % 500;
    CHECK_EQ(out.size(), bytes);
    CHECK(holds(out.data(), out.size(), i));
    out.pop();
  }
  producer.join();
  CHECK(!out.broken());
}

}  // namespace
}  // namespace memsvc

int main(int argc, char**) {
  using namespace memsvc;
  const bool quick = argc > 1;
  for (uint64_t seed = 1; seed <= (quick ? 5 : 40); ++seed) any_order_of_calls(seed, quick ? 2000 : 20000);
  a_full_ring_takes_marks();
  an_emptied_ring_begins_anew();
  sleepers_are_woken_once();
  what_cannot_be_breaks_it();
  noise(3, quick ? 100 : 1000);
  two_threads(quick ? 20000 : 300000);
  return check::summary();
}
