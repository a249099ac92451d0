// SPDX-License-Identifier: Apache-2.0
// Who is there, what they use, how long requests take.
#include <algorithm>
#include <cstring>

#include "service.hpp"

namespace sac {

namespace {

template <std::size_t N> void put(char (&to)[N], const std::string &text) {
    const std::size_t n = std::min(text.size(), N - 1);
    std::memcpy(to, text.data(), n);
    std::memset(to + n, 0, N - n);
}

void put(std::uint8_t (&to)[16], const Id &id) { std::memcpy(to, id.data(), id.size()); }

// Copies as many as there is room for, and says how many there are.
template <class T> void give(const std::vector<T> &all, T *out, std::uint64_t &count) {
    if (out && !all.empty())
        std::copy_n(all.begin(), std::min<std::uint64_t>(count, all.size()), out);
    count = all.size();
}

void copy(const Latency &from, std::uint64_t (&to)[SAC_LATENCY_BUCKETS]) {
    static_assert(SAC_LATENCY_BUCKETS == kLatencyBuckets);
    for (std::size_t i = 0; i < kLatencyBuckets; ++i)
        to[i] = from.bucket[i].load(std::memory_order_relaxed);
}

// The client writes in the table: its numbers are what it says of itself.
void read_table(const Attachment &a, sac_table_info &out) {
    const PinTable &t = *a.table;
    out.revoked = t.revoked() || !a.current();
    t.each_used([&](std::uint32_t slot) {
        if (t.token(slot) != 0)
            ++out.reservations;
        else if (t.pinned(slot))
            ++out.pinned;
    });
    if (a.ns)
        out.reservations = a.ns->control().reservations_of(t);
    const PinTable::Counters &c = t.counters();
    out.lookups = c.lookups, out.hits = c.hits, out.rows_gathered = c.rows_gathered;
    out.bytes_gathered = c.bytes_gathered, out.bytes_written = c.bytes_written;
    out.puts = c.puts, out.gathers = c.gathers, out.pins = c.pins;
    for (int i = 0; i < PinTable::kTimings; ++i)
        copy(t.latency(static_cast<PinTable::Timing>(i)), out.latency[i]);
}

}  // namespace

void Service::clients(sac_client_info *out, std::uint64_t &count) const {
    std::vector<sac_client_info> all;
    {
        const std::lock_guard lock(mutex_);
        for (const auto &[id, client] : clients_) {
            const Roster::Client &r = client->record;
            sac_client_info i{};
            put(i.id, r.id);
            i.pid = r.process.pid, i.start_time = r.process.start_time;
            i.uid = r.uid, i.gid = r.gid;
            i.connected = client->session != 0;
            i.tables = static_cast<std::uint32_t>(client->tables.size());
            i.evicted = r.evicted;
            i.since_ms = r.since_ms;
            i.requests = client->requests.load(std::memory_order_relaxed);
            put(i.name, r.name);
            all.push_back(i);
        }
    }
    give(all, out, count);
}

void Service::tables(sac_table_info *out, std::uint64_t &count) const {
    std::vector<std::shared_ptr<const Attachment>> held;
    {
        const std::lock_guard lock(mutex_);
        for (const auto &[id, client] : clients_)
            for (const auto &[number, a] : client->tables)
                held.push_back(a);
    }
    const std::uint64_t room = out ? count : 0;
    count = held.size();
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(room, held.size()); ++i) {
        const Attachment &a = *held[i];
        sac_table_info &t = out[i];
        t = {};
        put(t.client, a.file.client);
        put(t.pool, a.pool_name), put(t.name, a.name);
        t.table = a.file.number, t.writable = a.file.writable;
        if (a.table)
            read_table(a, t);
        else
            t.revoked = 1;
    }
}

void Service::ops(sac_op_info *out, std::uint64_t &count) const {
    std::vector<sac_op_info> all;
    for (std::size_t op = 0; op < ops_.size(); ++op) {
        const std::uint64_t n = ops_[op].count.load(std::memory_order_relaxed);
        if (n == 0)
            continue;
        sac_op_info i{};
        i.op = static_cast<std::uint32_t>(op);
        i.count = n, i.errors = ops_[op].errors.load(std::memory_order_relaxed);
        copy(ops_[op].latency, i.latency);
        all.push_back(i);
    }
    give(all, out, count);
}

}  // namespace sac
