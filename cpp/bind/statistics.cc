#include "statistics.h"

namespace py = pybind11;

namespace memsvc {

const char* name_of(Why why) {
  switch (why) {
    case Why::kReady:
      return "ready";
    case Why::kMinItems:
      return "min_items";
    case Why::kStock:
      return "stock";
    case Why::kFew:
      return "few";
    case Why::kLimiter:
      return "limiter";
    case Why::kStale:
      return "stale";
    case Why::kShort:
      return "short";
    case Why::kVersion:
      return "version";
    default:
      return "empty";
  }
}

namespace {

py::dict as_dict(const ActorStats& actor) {
  using namespace py::literals;
  return py::dict("name"_a = actor.name, "actor"_a = actor.actor, "total"_a = actor.total, "population"_a = actor.population, "queue"_a = actor.queue,
                  "wanted"_a = actor.wanted, "drawn"_a = actor.drawn, "received"_a = actor.received, "starved"_a = actor.starved,
                  "left"_a = actor.left, "steps"_a = actor.steps, "episodes"_a = actor.episodes, "short_episodes"_a = actor.short_episodes,
                  "stale"_a = actor.stale, "age_steps"_a = actor.age_steps);
}

}  // namespace

py::dict as_dict(const PushCounts& pushes) {
  using namespace py::literals;
  return py::dict("received"_a = pushes.received, "stored"_a = pushes.stored, "duplicate"_a = pushes.duplicate, "gap"_a = pushes.gap,
                  "malformed"_a = pushes.malformed, "unknown"_a = pushes.unknown, "failed"_a = pushes.failed);
}

py::dict as_dict(const TableStats& table) {
  using namespace py::literals;
  py::list actors;
  for (const ActorStats& actor : table.actors) actors.append(as_dict(actor));
  py::object limiter = py::none();
  if (table.limited) limiter = py::dict("inserted"_a = table.inserted, "sampled"_a = table.sampled, "ahead"_a = table.ahead);
  return py::dict("items"_a = table.items, "total"_a = table.total, "population"_a = table.population, "min_weight"_a = table.min_weight,
                  "drawn"_a = table.drawn, "inserted"_a = table.inserted, "stale_updates"_a = table.stale_updates,
                  "refused_updates"_a = table.refused_updates, "evicted"_a = table.evicted, "starved"_a = table.starved, "aged"_a = table.aged,
                  "deleted"_a = table.deleted, "put_back"_a = table.put_back, "in_flight"_a = table.in_flight, "exhausted"_a = table.exhausted,
                  "limiter"_a = limiter, "age_steps"_a = table.age_steps, "feedback_bytes"_a = table.feedback_bytes,
                  "told_bytes"_a = table.told_bytes, "changes_bytes"_a = table.changes_bytes, "notes_bytes"_a = table.notes_bytes,
                  "actors"_a = actors);
}

}  // namespace memsvc
