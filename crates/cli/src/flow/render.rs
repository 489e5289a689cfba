//! A flow view as text: pure, so that it can be held against a picture.

use crate::ledger::form::size;
use crate::live::fit::{self, Column};
use crate::offline::grouped;
use bindery_server::connection::{Class, Wait};
use bindery_server::flow_view::{ConnectionFlow, FlowView, PoolFlow};
use std::collections::HashMap;
use std::fmt::Write as _;

/// Width of a pool's bar, where there is room.
const BAR: usize = 30;
/// The columns. On a narrow terminal those that say who holds what stay longest.
const COLUMNS: [Column; 12] = [
    Column::text("PEER", 4, 0),
    Column::text("CLASS", 8, 3),
    Column::number("PROTO", 5, 9),
    Column::number("HELD", 10, 0),
    Column::number("WINDOW", 6, 4),
    Column::number("UNSENT", 10, 6),
    Column::number("READS", 7, 1),
    Column::number("ADDS", 7, 2),
    Column::number("POLLS", 6, 8),
    Column::number("ADDS/S", 9, 5),
    Column::number("READS/S", 9, 7),
    Column::text("STATE", 20, 0),
];

/// How the text is to look.
#[derive(Debug, Clone, Default)]
pub struct Form {
    /// Connections shown; all there are without it.
    pub rows: Option<usize>,
    /// Width of the terminal: lines that are longer lose their least important parts.
    pub columns: Option<usize>,
    /// With emphasis and a line about keys.
    pub is_live: bool,
    /// Emphasis may be a colour.
    pub has_colours: bool,
    /// Why the view is an old one.
    pub trouble: Option<String>,
}

/// Rates are those since `before`, or since a connection was opened.
pub fn render(address: &str, now: &FlowView, before: Option<&FlowView>, form: &Form) -> String {
    let mut page = Page { text: String::new(), form };
    header(address, now, before, &mut page);
    pools(now, &mut page);
    connections(now, before, &mut page);
    if form.is_live {
        page.line(Emphasis::Faint, &format!("sorted by {}   s: another order   q: quit", now.sort.name()));
    }
    page.text
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Emphasis {
    None,
    Bold,
    Faint,
    /// Something is wrong; words say what.
    Alarm,
}

struct Page<'a> {
    text: String,
    form: &'a Form,
}

impl Page<'_> {
    fn line(&mut self, emphasis: Emphasis, line: &str) {
        let line = fit::words(line.trim_end(), self.form.columns);
        let code = match emphasis {
            _ if !self.form.is_live => "",
            Emphasis::None => "",
            Emphasis::Bold => "1",
            Emphasis::Faint => "2",
            Emphasis::Alarm if self.form.has_colours => "1;31",
            Emphasis::Alarm => "1",
        };
        let _ = match code {
            "" => writeln!(self.text, "{line}"),
            code => writeln!(self.text, "\x1b[{code}m{line}\x1b[0m"),
        };
    }
}

/// A count of one second.
fn rate(now: u64, before: u64, ms: u64) -> String {
    match now.saturating_sub(before).saturating_mul(1000).checked_div(ms) {
        Some(rate) => grouped(rate),
        None => "-".to_owned(),
    }
}

fn header(address: &str, now: &FlowView, before: Option<&FlowView>, page: &mut Page<'_>) {
    let totals = &now.totals;
    if let Some(trouble) = &page.form.trouble {
        let trouble = format!("NOT UP TO DATE: {trouble}");
        page.line(Emphasis::Alarm, &trouble);
    }
    let mut line = vec![format!("{address}   connections {}", grouped(totals.connections))];
    line.push(format!("stalled {}", grouped(totals.stalled)));
    line.push(format!("holding {}", size(totals.held_bytes)));
    if let Some(before) = before {
        let ms = now.monotonic_ms.saturating_sub(before.monotonic_ms);
        let per_second = |now: u64, before: u64| {
            let bytes = now.saturating_sub(before).saturating_mul(1000).checked_div(ms);
            bytes.map_or_else(|| "-".to_owned(), size)
        };
        let (adds, reads) =
            (rate(totals.adds, before.totals.adds, ms), rate(totals.reads, before.totals.reads, ms));
        line.push(format!("adds {adds}/s ({}/s)", per_second(totals.add_bytes, before.totals.add_bytes)));
        line.push(format!("reads {reads}/s ({}/s)", per_second(totals.read_bytes, before.totals.read_bytes)));
    }
    let line = fit::parts(&line, ", ", page.form.columns);
    page.line(Emphasis::Bold, &line);
    let admission = &now.admission;
    let mut parts = vec![format!("{} adds under way", grouped(admission.adds_in_progress))];
    if admission.connections_waiting > 0 {
        let waiting = match admission.connections_waiting {
            1 => "1 connection waits".to_owned(),
            more => format!("{} connections wait", grouped(more)),
        };
        parts.push(format!("{waiting} for room with {}", size(admission.bytes_waiting)));
    }
    if admission.recovery_waiting > 0 {
        parts.push(format!("{} batches of recovery wait", grouped(admission.recovery_waiting)));
    }
    if admission.adds_rejected > 0 {
        parts.push(format!("{} refused since the start", grouped(admission.adds_rejected)));
    }
    parts.push(format!("{} reads wait for a disk", grouped(totals.disk_reads_queued)));
    page.line(Emphasis::None, &fit::parts(&parts, ", ", page.form.columns));
    page.line(Emphasis::None, "");
}

fn pools(now: &FlowView, page: &mut Page<'_>) {
    for pool in &now.pools {
        let is_full = pool.waiting > 0;
        let emphasis = if is_full { Emphasis::Alarm } else { Emphasis::None };
        page.line(emphasis, &pool_line(pool, page.form.columns));
    }
    page.line(Emphasis::None, "");
}

fn pool_line(pool: &PoolFlow, columns: Option<usize>) -> String {
    let share = |of: u64| {
        let filled = u128::from(pool.used_bytes) * u128::from(of) / u128::from(pool.capacity_bytes.max(1));
        usize::try_from(filled).unwrap_or(usize::MAX)
    };
    let numbers =
        format!("{:>3}%  {:>10} of {:>10}", share(100), size(pool.used_bytes), size(pool.capacity_bytes));
    let mut parts = vec![numbers];
    if pool.waiting > 0 {
        parts.push(format!("FULL: {} wait", grouped(pool.waiting)));
    }
    if pool.waits > 0 {
        parts.push(format!("{} waits, {}", grouped(pool.waits), age(pool.waited_ms)));
    }
    let name = format!("{:<17} ", pool.name);
    let rest = columns.map(|columns| columns.saturating_sub(name.len()));
    // The bar goes first, for the numbers say the same.
    let room = rest.map_or(BAR, |rest| rest.saturating_sub(parts.join("   ").len() + "[] ".len()));
    let bar = match room.min(BAR) {
        0..10 => String::new(),
        width => {
            // Any use at all shows.
            let filled = share(width as u64).clamp(usize::from(pool.used_bytes > 0), width);
            format!("[{}{}] ", "#".repeat(filled), "-".repeat(width - filled))
        }
    };
    let rest = rest.map(|rest| rest.saturating_sub(bar.len()));
    format!("{name}{bar}{}", fit::parts(&parts, "   ", rest))
}

fn connections(now: &FlowView, before: Option<&FlowView>, page: &mut Page<'_>) {
    let old: HashMap<&str, &ConnectionFlow> =
        before.into_iter().flat_map(|view| view.connections.iter().map(|c| (&*c.peer, c))).collect();
    let elapsed_ms = before.map_or(0, |before| now.monotonic_ms.saturating_sub(before.monotonic_ms));
    let shown = now.connections.len().min(page.form.rows.unwrap_or(usize::MAX));
    let mut rows = Vec::new();
    for connection in &now.connections[..shown] {
        // A peer that reconnected since starts from zero.
        let known = old.get(&*connection.peer).filter(|old| old.open_ms <= connection.open_ms);
        let (adds, reads, ms) = match known {
            Some(old) => (old.adds, old.reads, elapsed_ms),
            None => (0, 0, connection.open_ms),
        };
        let window = connection.outbound_bytes.saturating_mul(100).checked_div(connection.window_bytes);
        rows.push(vec![
            connection.peer.to_string(),
            class(connection.class).to_owned(),
            connection.protocol.to_string(),
            size(connection.held_bytes),
            window.map_or_else(|| "-".to_owned(), |percent| format!("{percent}%")),
            size(connection.unsent_bytes),
            grouped(connection.reads_queued),
            grouped(connection.adds_owed),
            grouped(connection.long_polls),
            rate(connection.adds, adds, ms),
            rate(connection.reads, reads, ms),
            state(connection),
        ]);
    }
    let lines = fit::table(&COLUMNS, &rows, page.form.columns);
    page.line(Emphasis::Bold, &lines[0]);
    for (connection, line) in now.connections.iter().zip(&lines[1..]) {
        let is_stalled = connection.stalled_ms().is_some();
        page.line(if is_stalled { Emphasis::Alarm } else { Emphasis::None }, line);
    }
    let hidden: u64 = now.connections[shown..].iter().map(|connection| connection.held_bytes).sum();
    let (count, held) =
        (now.rest.connections + (now.connections.len() - shown) as u64, now.rest.held_bytes + hidden);
    if count > 0 {
        page.line(Emphasis::Faint, &format!("and {} more, holding {}", grouped(count), size(held)));
    }
}

fn class(class: Class) -> &'static str {
    match class {
        Class::Idle => "idle",
        Class::Writer => "writer",
        Class::Reader => "reader",
        Class::Mixed => "mixed",
        Class::Recovery => "recovery",
    }
}

/// `1.5 s`, `12 s`.
fn age(ms: u64) -> String {
    if ms < 10_000 { format!("{}.{} s", ms / 1000, ms % 1000 / 100) } else { format!("{} s", ms / 1000) }
}

/// In words, the worst first.
fn state(connection: &ConnectionFlow) -> String {
    let mut parts = Vec::new();
    if let Some(ms) = connection.stalled_ms() {
        parts.push(format!("STALLED: took nothing for {}", age(ms)));
    }
    if let Some(why) = connection.not_read_because {
        let what = match why {
            Wait::Inbound => "memory to read into",
            Wait::LargeFrame => "memory for a large frame",
            Wait::Outbox => "room for its answers",
            Wait::WriteRoom => "room in the write pool",
            Wait::Reads => "its reads in hand",
        };
        parts.push(format!("not read for {}, waits for {what}", age(connection.not_read_ms.unwrap_or(0))));
    }
    if connection.is_window_full && connection.reads_queued > 0 {
        parts.push("window full".to_owned());
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_a_narrow_terminal_the_least_important_numbers_are_left_out() {
        let view: FlowView = serde_json::from_str(include_str!("../../tests/flow/view-1.json")).unwrap();
        let narrow = Form { columns: Some(80), ..Form::default() };
        let text = render("http://127.0.0.1:8080", &view, Some(&view), &narrow);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("HELD    READS     ADDS  STATE\n"), "{text}");
        assert!(text.contains("STALLED: took"), "{text}");
        assert!(text.contains("100%   224.0 MiB of  224.0 MiB   FULL: 1 wait\n"), "{text}");
        let wide = render("http://127.0.0.1:8080", &view, None, &Form::default());
        assert!(wide.contains("POLLS") && wide.contains("took nothing for 13 s; window full\n"), "{wide}");
    }

    #[test]
    fn an_alarm_without_colours_is_bold() {
        let view: FlowView = serde_json::from_str(include_str!("../../tests/flow/view-1.json")).unwrap();
        let form = Form { is_live: true, ..Form::default() };
        let text = render("http://127.0.0.1:8080", &view, None, &form);
        assert!(text.contains("\x1b[1mwrite") && !text.contains("\x1b[1;31m"), "{text}");
        let form = Form { has_colours: true, ..form };
        assert!(render("http://127.0.0.1:8080", &view, None, &form).contains("\x1b[1;31mwrite"));
    }
}
