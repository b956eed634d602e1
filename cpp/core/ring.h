// Messages from one process to another through memory that both map: one producer, one consumer, no lock.
#pragma once

#include <cstddef>
#include <cstdint>

namespace memsvc {

// One end of it. Each side has a Ring over the same memory and uses one half of it; a Ring is used by one thread at a time.
//
// A message is one contiguous piece at a multiple of 64, written and read in place. Positions only grow, so nothing is ever
// ambiguous; a ring found empty beyond its first quarter goes on at its beginning, so that one that is seldom full keeps few
// pages in the caches.
// The other side is not believed: a position or a size that cannot be makes the ring `broken` for good, and it is empty then.
// What a message says may still change under its reader: who must not be misled copies it first.
class Ring {
 public:
  static constexpr size_t kHeadBytes = 256;
  static constexpr size_t kLine = 64;
  // Room that push leaves for marks, so that a message that does not fit can still be announced.
  static constexpr size_t kReserveBytes = 64 * kLine;
  static constexpr size_t kLeastBytes = 8 * kReserveBytes;

  // memory: kHeadBytes + capacity bytes of zeros at the start, at a multiple of 64; capacity: a multiple of 64, at least kLeastBytes.
  Ring(uint8_t* memory, size_t capacity);

  // The producer's half.

  // The longest message that always fits into an empty ring.
  size_t most() const { return most_; }
  // Where a message of so many bytes is to be written; null: no room now. Reserving again replaces it.
  uint8_t* reserve(size_t bytes);
  // What reserve() gave last; null where it gave nothing, or a message has been put since.
  uint8_t* reserved() const { return reserved_ > 0 ? memory_ + kHeadBytes + offset_of(next_) + kLine : nullptr; }
  // The reserved message is there, now `bytes` long (at most what was reserved, and not 0). True: the consumer sleeps, and is to be woken.
  bool commit(size_t bytes);
  // Puts a message without content: it stands for one that goes another way, in this place of the order. False: no room.
  bool mark();
  // Position behind what was put last; positions only grow.
  uint64_t written() const { return own_; }
  // What was put from this position on is not written over, although the consumer has read it: it may be wanted again. kNothing: only what is unread.
  static constexpr uint64_t kNothing = ~uint64_t{0};
  void keep(uint64_t from) { keep_ = from; }
  // Whether mark() would find room now.
  bool room() { return place(0, 0) != nullptr; }
  // The consumer went to sleep before the last mark or commit: it is to be woken. Asks once.
  bool sleeper();

  // The consumer's half.

  enum class Front { kNone, kMark, kMessage };
  // What is to be read next; a message is at data(), size() bytes.
  Front front();
  const uint8_t* data() const { return memory_ + kHeadBytes + offset_of(own_) + kLine; }
  size_t size() const { return size_; }
  // The front has been read; its memory is the producer's again.
  void pop();
  // Looks so many times, a few dozen cycles apart, whether something has come; false: not yet.
  bool spin(uint32_t rounds);
  // Announces that the consumer is about to sleep. False: something came meanwhile, and nobody will wake it.
  bool doze();

  bool broken() const { return broken_; }

 private:
  struct Shared;
  Shared* shared() const { return reinterpret_cast<Shared*>(memory_); }
  size_t offset_of(uint64_t position) const { return static_cast<size_t>(position % capacity_); }
  uint8_t* place(size_t bytes, size_t leave);
  void publish(uint64_t size);
  bool look();

  uint8_t* memory_;
  size_t capacity_;
  size_t most_;
  uint64_t own_ = 0;          // this side's position
  uint64_t other_ = 0;        // the other side's, when last looked at
  uint64_t keep_ = kNothing;  // producer
  uint64_t next_ = 0;         // producer: where the reserved message's line is, behind what is skipped
  size_t size_ = 0;           // consumer: of the front
  size_t reserved_ = 0;
  bool broken_ = false;
};

}  // namespace memsvc
