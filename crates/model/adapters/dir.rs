//! The outbox when it is a folder of files.

use super::budget::{ByteBudget, Permit};
use super::outbox::{Body, Flush, Outbox, Sink, Window};
use super::request::ReadRequest;
use std::sync::Arc;
use tokio::sync::Notify;

pub fn outbox(answers_max: usize, window_max: usize, pool: ByteBudget, sender: Arc<Notify>) -> Outbox {
    Outbox::new(answers_max, window_max, window_max, pool, sender)
}

pub fn flush(outbox: &Outbox, sink: &impl Sink, is_sender: bool) -> Flush {
    outbox.flush(sink, is_sender, &mut Vec::new())
}

pub fn entry(outbox: &Outbox, promised: usize, window: Window, permit: Permit, body: Body<'_>, head: &[u8]) {
    let request = ReadRequest { promised, is_high: false, is_from_tier: false };
    outbox.entry(request, window, permit, body, |out| out.extend_from_slice(head));
}

pub fn owes_nothing(outbox: &Outbox) -> bool {
    outbox.owes_nothing()
}
