// A saved state with some of it changed, and sealed again as if it had been written so: it is refused, or what it gives keeps every invariant and
// works.
#include "archive.h"
#include "hostile.h"
#include "restore.h"

using namespace memsvc;

namespace {

template <typename Column>
void change(fuzz::Bytes& in, Column* column) {
  if (column->empty()) return;
  auto& value = (*column)[in.below(column->size())];
  if constexpr (std::is_floating_point_v<typename Column::value_type>) {
    value = in.real();
  } else {
    value = static_cast<typename Column::value_type>(in.count());
  }
}

void change_items(fuzz::Bytes& in, SavedItems* items) {
  switch (in.byte() % 8) {
    case 0:
      return change(in, &items->keys);
    case 1:
      return change(in, &items->versions);
    case 2:
      return change(in, &items->values);
    case 3:
      return change(in, &items->spans);
    case 4:
      return change(in, &items->heads);
    case 5:
      return change(in, &items->factors);
    case 6:
      return change(in, &items->times);
    default:
      return change(in, &items->updated);
  }
}

void change_state(fuzz::Bytes& in, std::vector<uint8_t>* state) {
  state->resize(state->size() - 8);
  for (uint64_t n = in.byte() % 4; n-- > 0;) {
    const size_t at = in.below(state->size());
    if (in.byte() % 2) {
      (*state)[at] ^= static_cast<uint8_t>(1 << in.byte() % 8);
    } else {
      const uint64_t value = in.count();
      std::memcpy(state->data() + at / 8 * 8, &value, std::min<size_t>(8, state->size() - at / 8 * 8));
    }
  }
  if (in.one_in(16)) state->resize(in.below(state->size()));
  seal(state);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Bytes in(data, size);
  const fuzz::Setup& setup = fuzz::setups()[in.below(fuzz::setups().size())];
  fuzz::Run run(in, setup);
  for (int left = 1 + in.byte() % 32; left > 0; --left) run.step();
  Saved saved;
  fuzz::expect(run.replay->save(&saved).ok(), "a copy can be had");
  change_state(in, &saved.state);
  std::vector<std::unique_ptr<SavedItems>> items;
  for (SavedItems& of : saved.items) {
    if (in.one_in(8)) {
      items.push_back(nullptr);
      continue;
    }
    for (uint64_t n = in.byte() % 3; n-- > 0;) change_items(in, &of);
    items.push_back(std::make_unique<SavedItems>(std::move(of)));
  }
  std::unique_ptr<Replay> next;
  fuzz::expect(Replay::make(fuzz::schema(), setup.tables, setup.memory - 20000 * (in.byte() % 2), 2, 5, &next).ok(), "there is a fresh one");
  std::vector<uint64_t> needed;
  if (!next->begin_restore(saved.state.data(), saved.state.size(), std::move(items), &needed).ok()) {
    fuzz::expect(next->check().ok(), "what was refused has changed nothing");
    return 0;
  }
  std::erase_if(needed, [&](uint64_t) { return in.one_in(64); });
  const std::vector<uint8_t> rows(needed.size() * fuzz::schema().row_stride());
  next->restore_rows(needed.data(), rows.data(), needed.size());
  next->finish_restore();
  run.replay = std::move(next);
  for (int left = 8; left > 0; --left) {
    const Status whole = run.replay->check();
    fuzz::expect(whole.ok(), whole.message());
    run.step();
  }
  return 0;
}
