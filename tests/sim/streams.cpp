// Streams, events, copies and graphs. At once: a task runs when it is queued. Lazy: it runs only when somebody waits for it,
// so that a missing wait gives old bytes.
#include <algorithm>
#include <chrono>
#include <thread>

#include "world.h"

namespace sim {

double now_ms() {
    using namespace std::chrono;
    return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

Stream* World::null_stream(int card) {
    auto& stream = null_streams[card];
    if (!stream) stream.reset(new Stream{card, true, {}, false, nullptr});
    return stream.get();
}

Stream* World::make_stream(int card, bool blocking) {
    every_stream.emplace_back(new Stream{card, blocking, {}, false, nullptr});
    Stream* stream = every_stream.back().get();
    streams.push_back(stream);
    live[static_cast<int>(Taking::Stream)]++;
    return stream;
}

void World::drop_stream(Stream* stream) {
    run_all(stream);
    streams.erase(std::remove(streams.begin(), streams.end(), stream), streams.end());
    live[static_cast<int>(Taking::Stream)]--;
}

void World::perform(Task& task, int card) {
    if (cards[card].broken) return;
    if (task.kind == Task::Launch && ++launches == break_at_launch) {
        cards[card].broken = break_with;
        return;
    }
    task.run();
}

void World::run_tasks(Stream* stream) {
    while (!stream->tasks.empty() && !stream->stuck) {
        Task& front = stream->tasks.front();
        if (front.kind == Task::Copy && ++copies == stick_at_copy) {
            stream->stuck = holding_copies = true;
            return;
        }
        Task task = std::move(front);
        stream->tasks.pop_front();
        perform(task, stream->card);
    }
}

/// The next task of any stream; whether there was one.
bool World::run_one_task() {
    for (Stream* stream : std::vector<Stream*>(streams)) {
        if (stream->tasks.empty() || stream->stuck || stream->recording) continue;
        Task task = std::move(stream->tasks.front());
        stream->tasks.pop_front();
        copies += task.kind == Task::Copy;
        const long before = launches;
        perform(task, stream->card);
        background_launches += launches - before;
        return true;
    }
    return false;
}

/// Runs streams for as long as nobody sets up another world.
void World::work_in_background(long number) {
    for (;;) {
        bool worked;
        {
            Call call(*this);
            if (background != number) return;
            worked = run_one_task();
        }
        std::this_thread::sleep_for(std::chrono::microseconds(worked ? 1 : 50));
    }
}

/// Runs everything, waiting where a copy is held.
Error World::run_all(Stream* stream) {
    for (;;) {
        run_tasks(stream);
        if (cards[stream->card].broken) {
            stream->tasks.clear();
            stream->stuck = false;
            return cards[stream->card].broken;
        }
        if (!stream->stuck) return OK;
        released.wait(*Call::current(), [&] { return !holding_copies || cards[stream->card].broken; });
        stream->stuck = false;
    }
}

/// The null stream and those that block it wait for one another.
void World::settle(Stream* stream) {
    Stream* null = null_stream(stream->card);
    if (stream != null && stream->blocking) run_all(null);
    if (stream == null)
        for (auto* other : std::vector<Stream*>(streams))
            if (other->card == stream->card && other->blocking) run_all(other);
}

Error World::enqueue(Stream* stream, Task task) {
    if (stream->recording) {
        stream->recording->push_back(std::move(task));
        return OK;
    }
    settle(stream);
    stream->tasks.push_back(std::move(task));
    if (!lazy) run_tasks(stream);
    return OK;
}

Error World::synchronize(Stream* stream) {
    if (stream->recording) return CAPTURE_UNSUPPORTED;
    settle(stream);
    return run_all(stream);
}

Error World::synchronize_card(int card) {
    Error first = run_all(null_stream(card));
    for (auto* stream : std::vector<Stream*>(streams))
        if (stream->card == card && !stream->recording) {
            const Error e = run_all(stream);
            if (!first) first = e;
        }
    return first;
}

/// Asking moves a lazy stream on by one task, so that loops of questions end.
Error World::query(Stream* stream) {
    if (stream->tasks.empty()) return OK;
    if (!stream->stuck) {
        Task task = std::move(stream->tasks.front());
        stream->tasks.pop_front();
        perform(task, stream->card);
    }
    return cards[stream->card].broken ? cards[stream->card].broken : NOT_READY;
}

Error World::record(Event* event, Stream* stream) {
    auto state = event->state;
    if (stream->recording) {
        state->stream = stream;
        state->asked = state->done = state->asked + 1;
        return OK;
    }
    const uint64_t serial = ++state->asked;
    state->stream = stream;
    return enqueue(stream, {Task::Other, [state, serial] {
                                state->done = std::max(state->done, serial);
                                state->at_ms = now_ms();
                            }});
}

Error World::wait_event(Stream* stream, Event* event) {
    auto state = event->state;
    if (state->stream && state->stream->recording) {
        stream->recording = state->stream->recording;
        return OK;
    }
    const uint64_t serial = state->asked;
    Stream* source = state->stream;
    if (stream->recording || !source) return OK;
    return enqueue(stream, {Task::Other, [this, state, serial, source] {
                                if (state->done < serial) run_all(source);
                            }});
}

Error World::synchronize_event(Event* event) {
    auto state = event->state;
    return state->done < state->asked ? run_all(state->stream) : OK;
}

Error World::query_event(Event* event) {
    auto state = event->state;
    if (state->done >= state->asked) return OK;
    query(state->stream);
    return cards[state->stream->card].broken ? cards[state->stream->card].broken : NOT_READY;
}

Error World::copy(Stream* stream, void* to, bool to_device, const void* from, bool from_device, size_t bytes, bool async) {
    int card;
    if (to_device && !owner(to, bytes, &card)) return INVALID_VALUE;
    if (from_device && !owner(from, bytes, &card)) return INVALID_VALUE;
    if (!async) {
        if (const Error e = synchronize(null_stream(stream->card))) return e;
        const bool held = ++copies == stick_at_copy;
        if (held) holding_copies = true;
        if (held) released.wait(*Call::current(), [&] { return !holding_copies || cards[stream->card].broken; });
        if (cards[stream->card].broken) return cards[stream->card].broken;
        std::memmove(to, from, bytes);
        return OK;
    }
    // Pageable memory is staged on the way in, and waited for on the way out; pinned memory is read and written later.
    if (!from_device && !pinned(from) && !stream->recording) {
        const auto* source = static_cast<const unsigned char*>(from);
        auto staged = std::make_shared<std::vector<unsigned char>>(source, source + bytes);
        return enqueue(stream, {Task::Copy, [staged, to] { std::memcpy(to, staged->data(), staged->size()); }});
    }
    if (const Error e = enqueue(stream, {Task::Copy, [to, from, bytes] { std::memmove(to, from, bytes); }})) return e;
    return !to_device && !pinned(to) && !stream->recording ? run_all(stream) : OK;
}

Error World::fill(Stream* stream, void* to, unsigned char value, size_t bytes, bool async) {
    int card;
    if (!owner(to, bytes, &card)) return INVALID_VALUE;
    if (const Error e = enqueue(stream, {Task::Other, [to, value, bytes] { std::memset(to, value, bytes); }})) return e;
    return async ? OK : synchronize(stream);
}

Error World::begin_capture(Stream* stream) {
    if (stream->recording || stream == null_stream(stream->card)) return CAPTURE_UNSUPPORTED;
    stream->recording = std::make_shared<std::vector<Task>>();
    return OK;
}

Error World::end_capture(Stream* stream, Graph** out) {
    if (!stream->recording) return INVALID_VALUE;
    *out = new Graph{stream->recording};
    for (auto* other : streams)
        if (other->recording == (*out)->tasks) other->recording = nullptr;
    return OK;
}

Error World::launch_graph(Stream* stream, Graph* graph) {
    graph_launches++;
    for (const Task& task : *graph->tasks)
        if (const Error e = enqueue(stream, task)) return e;
    return OK;
}

}  // namespace sim
