//! How well work is batched: a few relaxed atomic additions for each socket read, batch and wake-up, none for an entry.

use bindery_metrics::numbers;

numbers! {
    /// Batches of adds, and the system calls and wake-ups they share.
    #[derive(Debug)]
    pub struct Batching {
        socket_reads: Counter("bindery_socket_reads", "Reads of client sockets that brought something."),
        socket_writes: Counter("bindery_socket_writes", "Writes to client sockets, those that took nothing included."),
        reader_wakes: Counter(
            "bindery_reader_wakes",
            "Times a reader task found its socket readable after it had nothing to do."
        ),
        add_batches: Log2Histogram("bindery_add_batch_entries", "Adds that a shard took at once."),
        answers: Log2Histogram(
            "bindery_add_answers_per_connection_and_group",
            "Answers to adds put into a connection's outbox by one group."
        ),
    }
}
