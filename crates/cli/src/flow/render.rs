//! A flow view as text: pure, so that it can be held against a picture.

use crate::ledger::form::{count, size};
use crate::live::fit::{self, Column};
use crate::live::spark::{self, Glyphs, Row, Track};
use crate::offline::grouped;
use bindery_server::connection::{Class, Wait};
use bindery_server::flow_view::{ConnectionFlow, DirectionFlow, FlowView, PoolFlow};
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

/// The columns of tenants.
const TENANT_COLUMNS: [Column; 6] = [
    Column::text("TENANT", 7, 0),
    Column::number("WEIGHT", 6, 5),
    Column::number("ADDS/S", 10, 0),
    Column::number("WAITS", 6, 2),
    Column::number("READS/S", 10, 1),
    Column::number("WAITS", 6, 3),
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
    /// The view is an old one.
    pub trouble: Option<Trouble>,
    /// Lines about what was before, below the head.
    pub charts: Vec<String>,
}

/// Why there is no newer view.
#[derive(Debug, Clone)]
pub struct Trouble {
    /// Since the last one.
    pub age_ms: u64,
    /// What a look ended with.
    pub why: String,
}

/// What looks brought, one after the other.
#[derive(Debug, Default)]
pub struct Charts {
    adds: Track,
    reads: Track,
    held: Track,
    stalled: Track,
}

impl Charts {
    /// How many there is room for on a screen of so many lines.
    pub fn shown(lines: usize) -> usize {
        match lines {
            0..20 => 0,
            20..32 => 2,
            _ => 4,
        }
    }

    /// A look, and the one before.
    pub fn look(&mut self, now: &FlowView, before: &FlowView) {
        let ms = now.monotonic_ms.checked_sub(before.monotonic_ms).filter(|ms| *ms > 0);
        // Counters that went back are those of another process.
        let rate = |now: u64, before: u64| Some(now.checked_sub(before)? as f64 * 1000.0 / ms? as f64);
        self.adds.push(rate(now.totals.adds, before.totals.adds));
        self.reads.push(rate(now.totals.reads, before.totals.reads));
        self.held.push(Some(now.totals.held_bytes as f64));
        self.stalled.push(Some(now.totals.stalled as f64));
    }

    /// A look that brought nothing.
    pub fn miss(&mut self) {
        for track in [&mut self.adds, &mut self.reads, &mut self.held, &mut self.stalled] {
            track.push(None);
        }
    }

    /// The first `count` of them.
    pub fn lines(&self, count: usize, columns: usize, glyphs: Glyphs) -> Vec<String> {
        let each_second = |rate: f64| format!("{}/s", grouped(rate as u64));
        let rows = [
            Row { name: "adds", track: &self.adds, words: each_second },
            Row { name: "reads", track: &self.reads, words: each_second },
            Row { name: "held", track: &self.held, words: |bytes| size(bytes as u64) },
            Row { name: "stalled", track: &self.stalled, words: |count| grouped(count as u64) },
        ];
        spark::rows(&rows[..count], columns, glyphs)
    }
}

/// Rates are those since `before`, or since a connection was opened.
pub fn render(address: &str, now: &FlowView, before: Option<&FlowView>, form: &Form) -> String {
    let mut page = Page { text: String::new(), form };
    header(address, now, before, &mut page);
    for line in &form.charts {
        page.line(Emphasis::None, line);
    }
    if !form.charts.is_empty() {
        page.line(Emphasis::None, "");
    }
    pools(now, &mut page);
    tenants(now, before, &mut page);
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
    let (totals, trouble) = (&now.totals, page.form.trouble.as_ref());
    let is_read_only = !now.read_only_because.is_empty();
    // What matters most fits the first line of a narrow terminal.
    let mut line = Vec::new();
    if let Some(trouble) = trouble {
        line.push(format!("NOT UP TO DATE: no answer for {}", age(trouble.age_ms)));
    } else if let Some(before) = before {
        let ms = now.monotonic_ms.saturating_sub(before.monotonic_ms);
        let per_second = |now: u64, before: u64| {
            let bytes = now.saturating_sub(before).saturating_mul(1000).checked_div(ms);
            bytes.map_or_else(|| "-".to_owned(), size)
        };
        let (adds, reads) =
            (rate(totals.adds, before.totals.adds, ms), rate(totals.reads, before.totals.reads, ms));
        line.push(format!("adds {adds}/s ({}/s)", per_second(totals.add_bytes, before.totals.add_bytes)));
        line.push(format!("reads {reads}/s ({}/s)", per_second(totals.read_bytes, before.totals.read_bytes)));
    } else {
        line.push("adds and reads: after the next look".to_owned());
    }
    if is_read_only {
        line.push("READ-ONLY".to_owned());
    }
    let is_alarm = is_read_only || trouble.is_some();
    let line = fit::parts(&line, ", ", page.form.columns);
    page.line(if is_alarm { Emphasis::Alarm } else { Emphasis::Bold }, &line);
    if let Some(trouble) = trouble {
        let why = format!("{}. What follows is from before", trouble.why);
        page.line(Emphasis::None, &why);
    }
    for why in &now.read_only_because {
        let why = format!("read-only: {why}");
        page.line(Emphasis::None, &why);
    }
    let line = vec![
        format!("{address}   connections {}", grouped(totals.connections)),
        format!("stalled {}", grouped(totals.stalled)),
        format!("holding {}", size(totals.held_bytes)),
    ];
    let line = fit::parts(&line, ", ", page.form.columns);
    page.line(Emphasis::None, &line);
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
    let (idle, used): (Vec<_>, Vec<_>) = now.pools.iter().partition(|pool| is_idle(pool));
    for pool in used {
        let is_full = pool.waiting > 0;
        let emphasis = if is_full { Emphasis::Alarm } else { Emphasis::None };
        page.line(emphasis, &pool_line(pool, page.form.columns));
    }
    if !idle.is_empty() {
        let names: Vec<_> = idle.iter().map(|pool| pool.name.clone()).collect();
        let line = format!("{} below 1 %: {}", count(names.len() as u64, "pool", "pools"), names.join(", "));
        page.line(Emphasis::Faint, &line);
    }
    page.line(Emphasis::None, "");
}

/// Those who share the bookie; nothing while there is one.
fn tenants(now: &FlowView, before: Option<&FlowView>, page: &mut Page<'_>) {
    if now.tenants.len() < 2 {
        return;
    }
    let ms = before.map_or(0, |before| now.monotonic_ms.saturating_sub(before.monotonic_ms));
    // Of an old view nothing is a rate of now.
    let ms = if page.form.trouble.is_some() { 0 } else { ms };
    let mut rows = Vec::new();
    for tenant in &now.tenants {
        let old = before.and_then(|before| before.tenants.iter().find(|old| old.name == tenant.name));
        let old = old.unwrap_or(tenant);
        let rate = |now: &DirectionFlow, old: &DirectionFlow| {
            let rate = now.bytes.saturating_sub(old.bytes).saturating_mul(1000).checked_div(ms);
            let rate = rate.map_or_else(|| "-".to_owned(), size);
            now.limit.map_or(rate.clone(), |limit| format!("{rate} of {}", size(limit)))
        };
        let waits = |of: &DirectionFlow| match of.waiting {
            0 => grouped(of.waits),
            waiting => format!("{} now, {}", grouped(waiting), grouped(of.waits)),
        };
        rows.push(vec![
            tenant.name.clone(),
            grouped(tenant.weight.into()),
            rate(&tenant.adds, &old.adds),
            waits(&tenant.adds),
            rate(&tenant.reads, &old.reads),
            waits(&tenant.reads),
        ]);
    }
    let lines = fit::table(&TENANT_COLUMNS, &rows, page.form.columns);
    page.line(Emphasis::Bold, &lines[0]);
    lines[1..].iter().for_each(|line| page.line(Emphasis::None, line));
    page.line(Emphasis::None, "");
}

/// Nearly empty, and so for as long as it is there: nobody ever waited for it.
fn is_idle(pool: &PoolFlow) -> bool {
    pool.waiting == 0 && pool.waits == 0 && pool.used_bytes < pool.capacity_bytes / 100
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
            // Of an old view nothing is a rate of now.
            _ if page.form.trouble.is_some() => (0, 0, 0),
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
            Wait::Tenant => "the limit of its tenant",
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
    use bindery_server::flow_view::TenantFlow;

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
    fn tenants_have_lines_when_there_are_several() {
        let mut now: FlowView = serde_json::from_str(include_str!("../../tests/flow/view-1.json")).unwrap();
        let of = |name: &str, bytes: u64| TenantFlow {
            name: name.to_owned(),
            weight: 100,
            adds: DirectionFlow {
                bytes,
                limit: Some(20 << 20),
                waiting: 2,
                waits: 1234,
                ..DirectionFlow::default()
            },
            reads: DirectionFlow::default(),
        };
        now.tenants = vec![of("default", 0)];
        let form = Form::default();
        assert!(!render("http://a", &now, Some(&now), &form).contains("TENANT"), "one is folded");
        now.tenants.push(of("etl", 30 << 20));
        let mut before = now.clone();
        before.monotonic_ms = now.monotonic_ms - 2000;
        before.tenants[1].adds.bytes = 10 << 20;
        let text = render("http://a", &now, Some(&before), &form);
        let line = text.lines().find(|line| line.starts_with("etl")).unwrap();
        assert!(line.contains("10.0 MiB of   20.0 MiB") || line.contains("10.0 MiB of 20.0 MiB"), "{line}");
        assert!(line.contains("2 now, 1,234"), "{line}");
    }

    #[test]
    fn the_first_line_of_a_narrow_terminal_has_rates_and_state() {
        let mut now: FlowView = serde_json::from_str(include_str!("../../tests/flow/view-1.json")).unwrap();
        let mut before = now.clone();
        (now.monotonic_ms, before.monotonic_ms) = (2000, 1000);
        (now.totals.adds, before.totals.adds) = (1_345_678, 111_111);
        (now.totals.add_bytes, before.totals.add_bytes) = (1 << 30, 24 << 20);
        now.read_only_because = vec!["/l0 is 95.1 % full".to_owned()];
        let narrow = Form { columns: Some(80), ..Form::default() };
        let text = render("http://a-very-long-name.example.org:8080", &now, Some(&before), &narrow);
        let first = text.lines().next().unwrap();
        assert_eq!(first, "adds 1,234,567/s (1000.0 MiB/s), reads 0/s (0 B/s), READ-ONLY", "{text}");
        assert!(text.contains("\nread-only: /l0 is 95.1 % full\n"), "{text}");

        // Of a bookie that is gone no old rate is shown as one of now.
        let trouble = Trouble { age_ms: 12_300, why: "cannot ask it: connection refused".to_owned() };
        let gone = Form { trouble: Some(trouble), ..narrow };
        let text = render("http://127.0.0.1:8080", &now, Some(&before), &gone);
        let first = text.lines().next().unwrap();
        assert_eq!(first, "NOT UP TO DATE: no answer for 12 s, READ-ONLY");
        assert!(text.contains("connection refused") && !text.contains("1,234,567/s"), "{text}");
    }

    #[test]
    fn charts_show_what_looks_brought_and_gaps_where_none_did() {
        let mut before: FlowView =
            serde_json::from_str(include_str!("../../tests/flow/view-0.json")).unwrap();
        let mut charts = Charts::default();
        for step in 1..=12u64 {
            let mut now = before.clone();
            now.monotonic_ms += 1000;
            now.totals.adds += step * 1000;
            now.totals.reads += 13_000 - step * 1000;
            now.totals.held_bytes = step << 20;
            now.totals.stalled = u64::from(step > 8);
            charts.look(&now, &before);
            before = now;
        }
        charts.miss();
        charts.miss();
        let mut restarted = before.clone();
        (restarted.monotonic_ms, restarted.totals.adds) = (5, 7);
        charts.look(&restarted, &before);
        let lines = charts.lines(4, 64, Glyphs::Blocks).join("\n");
        let expected = "\
adds              -  ▂▃▃▄▄▅▆▆▇▇██··· most 12,000/s
reads             -  ██▇▇▆▆▅▄▄▃▃▂··· most 12,000/s
held       12.0 MiB  ▂▃▃▄▄▅▆▆▇▇██··█ most 12.0 MiB
stalled           1  ▁▁▁▁▁▁▁▁████··█ most 1";
        assert_eq!(
            lines.split_whitespace().collect::<Vec<_>>(),
            expected.split_whitespace().collect::<Vec<_>>(),
            "{lines}"
        );
        let form = Form {
            is_live: true,
            columns: Some(64),
            trouble: Some(Trouble { age_ms: 2000, why: "connection refused".to_owned() }),
            charts: charts.lines(2, 64, Glyphs::Ascii),
            ..Form::default()
        };
        let text = render("http://127.0.0.1:8080", &before, None, &form);
        assert!(text.contains("NOT UP TO DATE") && text.contains("**##"), "{text}");
    }

    #[test]
    fn pools_that_are_nearly_empty_are_one_line() {
        let mut view: FlowView = serde_json::from_str(include_str!("../../tests/flow/view-1.json")).unwrap();
        let text = render("http://127.0.0.1:8080", &view, None, &Form::default());
        assert!(text.contains("\n5 pools below 1 %: inbound, inbound-large, outbox"), "{text}");
        assert!(text.contains("\nwrite ") && text.contains("\nindex "), "{text}");
        view.pools[1].waiting = 1;
        let text = render("http://127.0.0.1:8080", &view, None, &Form::default());
        assert!(text.contains("\ninbound ") && text.contains("\n4 pools below 1 %"), "{text}");
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
