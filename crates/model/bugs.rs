// The planted bugs. Each is a small change to one place of a source, which must be there exactly once.
const BUGS: &[Bug] = &[
    (
        "released_bytes_serve_nobody",
        "budget",
        "self.serve(|state| state.available += bytes);",
        "self.state.lock().available += bytes;",
    ),
    (
        "a_cancelled_place_keeps_others_back",
        "budget",
        "            if let Some(gone) = state.waiters.remove(&self.ticket) {
                state.end_wait(gone.since);
            }
        });",
        "        });
        self.pool.state.lock().waiters.remove(&self.ticket);",
    ),
    (
        "small_ones_pass_the_line",
        "budget",
        "            if state.waiters.is_empty() && bytes <= state.available {",
        "            if bytes <= state.available {",
    ),
    (
        "merged_bytes_come_back_twice",
        "budget",
        "self.bytes += std::mem::take(&mut other.bytes);",
        "self.bytes += other.bytes; other.bytes += 0;",
    ),
    ("a_grant_to_nobody_is_lost", "budget", "drop(grant.send(permit));", "std::mem::forget(grant.send(permit));"),
    (
        "two_threads_write",
        "outbox",
        "if state.is_writing || state.segments.is_empty() {",
        "if state.segments.is_empty() {",
    ),
    (
        "what_is_left_goes_behind",
        "outbox",
        "            taken.append(&mut state.segments);
            state.segments = taken;",
        "            state.segments.append(&mut taken);",
    ),
    (
        "room_is_not_told",
        "outbox",
        "        if held < self.answers_max {
            self.room.notify_one();",
        "        if held < self.answers_max {",
    ),
    (
        "a_closed_outbox_keeps_its_lease",
        "outbox",
        "(std::mem::take(&mut state.segments), state.lease.take())",
        "(std::mem::take(&mut state.segments), std::mem::forget(state.lease.take()))",
    ),
    (
        "a_writer_leaves_without_a_word",
        "outbox",
        "if self.state.lock().segments.is_empty() { Flush::Done } else { Flush::Left }",
        "Flush::Done",
    ),
    (
        "a_window_opens_untold",
        "outbox",
        "        if std::mem::take(&mut read_window.is_wanted) {
            self.sender.notify_one();",
        "        if std::mem::take(&mut read_window.is_wanted) {",
    ),
    ("a_signal_is_raised_beside_the_lock", "signal", "            drop(self.lock.lock());\n", ""),
    (
        "an_unused_grant_wakes_no_thread",
        "admission_queue",
        "        if self.queue.has_waiting() {
            self.queue.signal.raise();
        }",
        "",
    ),
    (
        "a_grant_is_not_returned",
        "admission_queue",
        "self.queue.reserved.fetch_sub(self.cost, Ordering::SeqCst);",
        "",
    ),
    (
        "the_queue_is_a_stack",
        "fair_queue",
        "line.waiting.pop_front().expect(\"it waits\")",
        "line.waiting.pop_back().expect(\"it waits\")",
    ),
];
