// Pushes read in memory that another process goes on writing to: whatever it changes, between a check and its use too, the store stays whole, and
// nothing but the bytes of its own rows is wrong.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>

#include "world.h"

using namespace memsvc;
using namespace world;

namespace {

constexpr size_t kRoom = size_t{1} << 16;

// Writes words that mean something elsewhere in it, or nothing, for ever.
[[noreturn]] void scribble(volatile uint64_t* words, size_t n, uint64_t seed) {
  Random random(seed);
  while (true) {
    const uint64_t choice = random.below(4), at = random.below(random.below(2) ? sizeof(CacheHead) / 8 : n);
    words[at] = choice == 0   ? random.next()
                : choice == 1 ? ~uint64_t{0}
                : choice == 2 ? words[random.below(n)]
                              : words[at] ^ (uint64_t{1} << random.below(64));
  }
}

void pushed_while_it_changes(const TableSpec& spec, uint64_t rounds, uint64_t seed) {
  const Schema schema = make_schema();
  std::unique_ptr<Replay> replay;
  CHECK_OK(Replay::make(schema, {spec}, 600000, seed, 5, &replay));
  std::vector<uint64_t> streams;
  const uint64_t actor = replay->join("actor", 2, &streams);
  uint8_t* shared = static_cast<uint8_t*>(mmap(nullptr, kRoom, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  Random random(seed);
  Payload payload;
  for (const uint64_t stream : streams) {
    for (int i = 0; i < 12; ++i) payload.items.push_back(record_of(spec, random_key(spec, stream, 9, random)));
  }
  if (spec.select != Select::kAll) {
    for (const ItemRecord& item : payload.items) payload.draws.push_back({item.key, 1});
  }
  payload.head.total = 5, payload.head.population = 24, payload.head.min_weight = .1;
  payload.add_rows(spec);
  const std::vector<uint64_t> words = payload.bytes(spec, schema);
  const size_t size = words.size() * 8;
  CHECK(size <= kRoom);
  const pid_t other = fork();
  if (other == 0) scribble(reinterpret_cast<volatile uint64_t*>(shared), words.size(), seed + 1);
  std::map<Code, uint64_t> codes;
  for (uint64_t round = 0; round < rounds && check::failed == 0; ++round) {
    std::memcpy(shared, words.data(), size);
    uint64_t items = 0, draws = 0;
    ++codes[replay->push(actor, shared, size, &items, &draws).code()];
    if (round % 64 == 0) CHECK_OK(replay->check());
    if (round % 16 != 0) continue;
    std::vector<uint64_t> out(spec.batch_bytes(8, nullptr) / 8);
    uint64_t population = 0;
    double total = 0;
    if (replay->draw(0, 8, reinterpret_cast<uint8_t*>(out.data()), &population, &total)) CHECK(population > 0 && std::isfinite(total));
    replay->notices(actor, 0);
  }
  CHECK_OK(replay->check());
  kill(other, SIGKILL);
  CHECK_EQ(waitpid(other, nullptr, 0), other);
  munmap(shared, kRoom);
  std::printf("%d stored, %d refused\n", static_cast<int>(codes[Code::kOk]), static_cast<int>(codes[Code::kMalformed]));
  CHECK_EQ(codes[Code::kOk] + codes[Code::kMalformed], rounds);
}

}  // namespace

int main(int argc, char**) {
  const Schema schema = make_schema();
  const uint64_t rounds = argc > 1 ? 3000 : 20000;
  pushed_while_it_changes(transition_table(schema, Select::kPrioritized, 3, Pad::kRepeat), rounds, 1);
  pushed_while_it_changes(sequence_table(schema, Select::kAll), rounds, 2);
  pushed_while_it_changes(step_table(schema, Select::kAll), rounds, 3);
  return check::summary();
}
