// SPDX-License-Identifier: Apache-2.0
// Sequences whose rows a GPU writes and reads: what is committed when, and what stays.
#include <atomic>

#include "check.hpp"
#include "kit_pages.hpp"
#include "sequence.hpp"

namespace {

struct Signal final : sac::Fence {
    std::atomic<bool> there{false};
    bool done() noexcept override { return there; }
};

struct Growing {
    kit::PoolHandle pool = kit::pool(16 * kit::kMiB);
    kit::NsHandle ns;
    kit::SeqHandle seq;
    std::vector<std::uint32_t> tokens;

    explicit Growing(const kit::Layout &layout = kit::plain(16, 64))
        : ns(kit::space(pool, "ns", layout)) {
        for (std::uint32_t i = 0; i < 256; ++i)
            tokens.push_back(i * 7 + 1);
        seq = another();
    }
    kit::SeqHandle another() const {
        sac_seq *raw = nullptr;
        MUST(sac_seq_open(ns.get(), nullptr, 0, "salt", 4, &raw));
        return kit::SeqHandle(raw);
    }
    sac::Sequence &it() const { return *seq->it; }
    void extend(std::uint64_t count) {
        MUST(sac_seq_extend(seq.get(), tokens.data() + it().tokens(), count, 0));
    }
    static void write(const kit::SeqHandle &to, std::uint64_t first, std::uint64_t count,
                      std::uint8_t value) {
        const std::vector<std::uint8_t> rows(count * 64, value);
        const sac_scatter_req r{0, 0, first, count, rows.data(), 0, 0, 0};
        MUST(sac_seq_write(to.get(), &r, 1, 1));
    }
    std::shared_ptr<Signal> written(std::uint64_t first, std::uint64_t end) {
        auto fence = std::make_shared<Signal>();
        const std::uint32_t planes[] = {0};
        it().written_by(planes, first, end, fence);
        return fence;
    }
    std::uint64_t flush() { return it().flush(); }
    const std::uint8_t *page(std::uint64_t i) const {
        const auto held = it().lock();
        return it().addresses(sac::kBodyPart)[i];
    }
};

}  // namespace

TEST(a_page_is_committed_behind_the_work_that_writes_it) {
    Growing s;
    s.extend(40);
    const auto first = s.written(0, 10), rest = s.written(10, 40);
    CHECK_EQ(s.flush(), 0u);
    rest->there = true;
    CHECK_EQ(s.flush(), 0u);  // its first rows are not there
    first->there = true;
    CHECK_EQ(s.flush(), 2u);
    CHECK_EQ(kit::stats(s.ns).pages, 2u);
    CHECK_EQ(s.flush(), 0u);  // the third is not full
}

TEST(a_page_is_committed_when_all_that_follow_it_know) {
    Growing s;
    s.extend(40);
    s.write(s.seq, 0, 40, 5);
    sac::Follower one, two, only_reads;
    only_reads.sealed = UINT64_MAX;
    for (sac::Follower *const f : {&one, &two, &only_reads})
        s.it().join(*f);
    CHECK_EQ(s.flush(), 0u);
    const auto fence = std::make_shared<Signal>(), done = std::make_shared<Signal>();
    done->there = true;
    s.it().seal(one, 2, fence);
    s.it().seal(two, 1, done);
    CHECK_EQ(s.flush(), 0u);  // what was under way may still write
    fence->there = true;
    CHECK_EQ(s.flush(), 1u);
    s.it().leave(two);
    CHECK_EQ(s.flush(), 1u);
    s.extend(8);
    s.write(s.seq, 40, 8, 5);
    CHECK_EQ(s.flush(), 0u);
    s.it().seal(one, UINT64_MAX, done);
    CHECK_EQ(s.flush(), 1u);
    s.it().leave(one);
    s.it().leave(only_reads);
}

TEST(a_cut_is_told_to_all_that_follow) {
    Growing s;
    s.extend(20);
    s.write(s.seq, 0, 20, 5);
    sac::Follower one, two;
    const auto done = std::make_shared<Signal>();
    done->there = true;
    s.it().join(one);
    s.it().join(two);
    s.it().seal(one, 1, done);
    s.it().seal(two, UINT64_MAX, done);
    std::uint64_t cut = UINT64_MAX;
    CHECK_EQ(s.it().follow(one, cut), 20u);
    CHECK_EQ(cut, UINT64_MAX);
    s.it().truncate(18);
    s.it().truncate(9);
    s.extend(3);
    CHECK_EQ(s.it().follow(one, cut), 12u);
    CHECK_EQ(cut, 9u);
    CHECK_EQ(s.it().follow(one, cut), 12u);
    CHECK_EQ(cut, 9u);  // it keeps what it has
    std::uint64_t other = UINT64_MAX;
    CHECK_EQ(s.it().follow(two, other), 12u);
    CHECK_EQ(other, 9u);
    // New tokens fill the page that was sealed: it waits to be sealed again.
    s.write(s.seq, 9, 3, 6);
    s.extend(4);
    s.write(s.seq, 12, 4, 6);
    CHECK_EQ(s.flush(), 0u);
    s.it().seal(one, 1, done);
    CHECK_EQ(s.flush(), 1u);
    s.it().leave(one);
    s.it().leave(two);
}

TEST(a_full_page_that_waits_does_not_stop_new_tokens) {
    Growing s;
    s.extend(16);
    const auto late = s.written(0, 16);
    s.extend(17);  // also the second page, and one token
    const auto soon = s.written(16, 33);
    soon->there = true;
    CHECK_EQ(s.flush(), 0u);  // pages become visible in their order
    s.extend(1);
    late->there = true;
    CHECK_EQ(s.flush(), 2u);
    // Rows that nobody wrote stop them as ever.
    s.extend(14);
    CHECK_THROWS(SAC_E_INCOMPLETE, s.it().extend(s.tokens.data(), 1, 0));
}

TEST(tokens_that_are_not_there_cannot_be_written) {
    Growing s;
    s.extend(20);
    CHECK_THROWS(SAC_E_RANGE, s.written(0, 21));
    CHECK_THROWS(SAC_E_RANGE, s.written(9, 8));
    s.written(0, 16)->there = true;
    CHECK_EQ(s.flush(), 1u);
    s.written(0, 20)->there = true;  // those of the committed page count for nothing
    CHECK_EQ(s.flush(), 0u);
}

TEST(drafts_are_taken_back) {
    Growing s;
    s.extend(20);
    s.written(0, 20)->there = true;
    CHECK_EQ(s.flush(), 1u);
    CHECK_THROWS(SAC_E_RANGE, s.it().truncate(15));
    CHECK_THROWS(SAC_E_RANGE, s.it().truncate(21));
    s.it().truncate(18);
    CHECK_EQ(s.it().tokens(), 18u);
    {
        const auto held = s.it().lock();
        CHECK_EQ(s.it().rows(0, 0), 18u);
    }
    // Other tokens in their place: the page's key is of those, and of rows written anew.
    s.it().extend(s.tokens.data() + 100, 14, 0);
    CHECK_EQ(s.flush(), 0u);
    s.written(18, 32)->there = true;
    CHECK_EQ(s.flush(), 1u);
    std::vector<std::uint32_t> whole(s.tokens.begin(), s.tokens.begin() + 18);
    whole.insert(whole.end(), s.tokens.begin() + 100, s.tokens.begin() + 114);
    std::vector<std::uint8_t> keys(2 * SAC_KEY_BYTES);
    MUST(sac_keys(s.ns.get(), whole.data(), 32, "salt", 4, nullptr, keys.data()));
    CHECK_EQ(kit::longest(s.ns, keys), 2u);
}

// An extend over a page's end and back: the page that was reserved is used again.
TEST(a_page_of_drafts_alone_stays_reserved) {
    Growing s;
    s.extend(10);
    s.written(0, 10);
    s.extend(10);
    s.it().truncate(10);
    CHECK_EQ(kit::stats(s.ns).reserved, 2u);
    s.extend(10);
    s.written(10, 20)->there = true;
    CHECK_EQ(kit::stats(s.ns).reserved, 2u);
}

TEST(what_was_borrowed_outlives_close) {
    Growing s;
    s.extend(20);
    s.write(s.seq, 0, 20, 7);
    CHECK_EQ(s.flush(), 1u);
    const std::shared_ptr<sac::Sequence> it = s.seq->it;
    it->borrow();
    it->borrow();
    const std::uint8_t *const open = s.page(1);
    s.seq.reset();
    CHECK_EQ(kit::evict(s.ns, 9), 0u);
    CHECK_EQ(kit::stats(s.ns).reserved, 1u);
    CHECK_EQ(open[0], 7);
    CHECK_THROWS(SAC_E_CLOSED, it->borrow());
    it->give_back();
    CHECK_EQ(kit::stats(s.ns).pinned, 1u);
    it->give_back();
    CHECK_EQ(kit::stats(s.ns).reserved, 0u);
    CHECK_EQ(kit::evict(s.ns, 9), 1u);
}

// Another writer was first. Its page takes the place of ours, but ours stays nobody else's
// while a GPU may still read it.
TEST(a_duplicate_stays_until_the_reader_is_done) {
    Growing s;
    kit::SeqHandle other = s.another();
    s.extend(16);
    s.write(s.seq, 0, 16, 1);
    s.it().borrow();
    const std::uint8_t *const ours = s.page(0);
    MUST(sac_seq_extend(other.get(), s.tokens.data(), 16, 0));
    s.write(other, 0, 16, 2);
    MUST(sac_seq_flush(other.get(), nullptr));
    CHECK_EQ(s.flush(), 1u);
    CHECK(s.page(0) != ours);
    CHECK_EQ(s.page(0)[0], 2);
    CHECK_EQ(kit::stats(s.ns).reserved, 1u);
    CHECK_EQ(kit::stats(s.ns).pages, 1u);
    CHECK_EQ(ours[0], 1);
    const std::shared_ptr<sac::Sequence> it = s.seq->it;
    s.seq.reset();
    CHECK_EQ(kit::stats(s.ns).reserved, 1u);
    it->give_back();
    CHECK_EQ(kit::stats(s.ns).reserved, 0u);
}
