//! `bindery bookie health`: how the bookies answer this process, again and again.
//!
//! # Data flow
//! ```text
//! registration -> Client::ask_bookies (and reads of a ledger) -> Client::bookie_health -> table, or lines of JSON
//! ```
//! Other clients keep their own view of the bookies: this is one more client, which starts with none.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::exit::Failure;
use crate::ledger::access::{open_failure, read_failure, store_failure, with_client};
use crate::ledger::args::BookieHealthArgs;
use crate::ledger::form;
use crate::live::fit::{self, Column};
use crate::live::spark::{Glyphs, Track};
use crate::live::{Event, Events, Key, Screen};
use crate::output;
use crate::printable::within_line;
use bindery_client::{
    BookieHealth, BookieId, Client, EntryId, LedgerReader, NodeState, OpenMode, Percentiles, ReadHealth,
};
use bindery_io::{Random, SystemRandom};
use serde_json::{Value, json};
use tokio::time::Instant;

/// Requests to each bookie, and reads, between two tables: enough for percentiles.
const ROUNDS: u32 = 20;

/// Runs the command.
pub fn run(args: BookieHealthArgs) -> Result<(), Failure> {
    let access = args.access.clone();
    with_client(&access, false, |client| watch(client, args))
}

async fn watch(client: Client, args: BookieHealthArgs) -> Result<(), Failure> {
    let reader = match args.ledger {
        None => None,
        Some(ledger) => {
            let reader = client.open_ledger(ledger, args.password.password.as_bytes(), OpenMode::ReadOnly);
            Some(reader.await.map_err(|error| open_failure(&error))?)
        }
    };
    let interval = Duration::from_secs_f64(args.interval.clamp(0.1, 3600.0));
    if args.json || args.once || !Screen::is_possible() {
        look(&client, reader.as_ref(), interval).await?;
        let text = match args.json {
            true => client.bookie_health().iter().flat_map(|bookie| form::line(&object(bookie))).collect(),
            false => render(&client.bookie_health(), &client.read_health(), &Form::default()).into_bytes(),
        };
        return output::write_all(&text);
    }
    // Whatever is wrong is said before the screen changes.
    look(&client, reader.as_ref(), Duration::from_millis(100)).await?;
    let mut events = Events::new()?;
    let mut screen = Screen::enter()?;
    let glyphs = Glyphs::of(args.draw.ascii);
    let (mut trouble, mut answered_at) = (None, Instant::now());
    let mut charts = Charts::default();
    charts.look(&client.bookie_health());
    loop {
        let (columns, _) = screen.size();
        let mut text = String::new();
        // Above all, where it is seen on a short screen, too.
        if let Some(trouble) = &trouble {
            let age = form::span(answered_at.elapsed().as_secs_f64());
            let line = format!("NOT UP TO DATE for {age}: {trouble}");
            let _ = writeln!(text, "{}", fit::words(&within_line(&line), Some(usize::from(columns))));
        }
        let form = Form { columns: Some(usize::from(columns)), charts: Some((&charts, glyphs)) };
        text += &render(&client.bookie_health(), &client.read_health(), &form);
        screen.draw_page(&glyphs.page(text))?;
        let event = {
            let looking = look(&client, reader.as_ref(), interval);
            tokio::pin!(looking);
            tokio::select! {
                looked = &mut looking => {
                    match looked {
                        Ok(()) => {
                            charts.look(&client.bookie_health());
                            (trouble, answered_at) = (None, Instant::now());
                        }
                        Err(failure) => {
                            charts.miss();
                            trouble = Some(failure.to_string());
                        }
                    }
                    continue;
                }
                event = events.next(&mut screen, interval * 2) => event,
            }
        };
        if matches!(event, Event::Quit | Event::Key(Key::Quit)) {
            return Ok(());
        }
    }
}

/// Asks every bookie, and reads, some times in `interval`.
async fn look(client: &Client, reader: Option<&LedgerReader>, interval: Duration) -> Result<(), Failure> {
    let bookies = client.bookies().await.map_err(|error| store_failure(&error))?;
    let bookies: Vec<BookieId> = bookies.into_iter().map(|bookie| bookie.id).collect();
    let until = Instant::now() + interval;
    for _ in 0..ROUNDS {
        client.ask_bookies(&bookies).await;
        if let Some(reader) = reader
            && let Some(last) = reader.last_add_confirmed()
        {
            let entry = (SystemRandom.next_u64() % (last.get() as u64 + 1)) as i64;
            let entry = EntryId::new(entry).unwrap_or(last);
            reader.read_entry(entry).await.map_err(|error| read_failure(&error))?;
        }
        if Instant::now() >= until {
            break;
        }
        tokio::time::sleep(interval / ROUNDS).await;
    }
    Ok(())
}

/// Milliseconds, with as many digits as say something.
fn ms(latency: Duration, count: u64) -> String {
    let ms = latency.as_secs_f64() * 1000.0;
    match count {
        0 => "-".to_owned(),
        _ if ms < 10.0 => format!("{ms:.2}"),
        _ => format!("{ms:.0}"),
    }
}

/// Width of a bookie's chart.
const CHART: usize = 16;
const LATELY: Column = Column::number("p99 LATELY", CHART, 2);

/// p99 of each bookie, look by look.
#[derive(Debug, Default)]
struct Charts(BTreeMap<BookieId, (u64, Track)>);

impl Charts {
    /// Takes in a look. A bookie that answered nothing since the last one has a gap there.
    fn look(&mut self, bookies: &[BookieHealth]) {
        self.0.retain(|id, _| bookies.iter().any(|bookie| bookie.bookie == *id));
        for bookie in bookies {
            let (answered, track) = self.0.entry(bookie.bookie.clone()).or_default();
            let has_answered = bookie.answered > *answered && bookie.reads.count > 0;
            track.push(has_answered.then_some(bookie.reads.p99.as_secs_f64()));
            *answered = bookie.answered;
        }
    }

    /// A look that brought nothing.
    fn miss(&mut self) {
        self.0.values_mut().for_each(|(_, track)| track.push(None));
    }

    fn bars(&self, bookie: &BookieId, glyphs: Glyphs) -> String {
        self.0.get(bookie).map_or(String::new(), |(_, track)| track.bars(CHART, glyphs))
    }
}

/// How the text is to look.
#[derive(Default)]
struct Form<'a> {
    /// Width of the terminal.
    columns: Option<usize>,
    /// With a chart for each bookie.
    charts: Option<(&'a Charts, Glyphs)>,
}

const COLUMNS: [Column; 11] = [
    Column::text("BOOKIE", 6, 0),
    Column::text("STATE", 9, 0),
    Column::number("PENDING", 7, 2),
    Column::number("ANSWERED", 9, 7),
    Column::number("p50 ms", 7, 3),
    Column::number("p95 ms", 7, 8),
    Column::number("p99 ms", 7, 1),
    Column::number("TIMEOUTS", 8, 4),
    Column::number("NO CON", 6, 5),
    Column::number("ERRORS", 6, 6),
    Column::number("HEDGES WON", 11, 9),
];

/// The bookies with the most to do first, and a line about reads. On a narrow terminal the least important columns are
/// left out.
fn render(bookies: &[BookieHealth], reads: &ReadHealth, form: &Form<'_>) -> String {
    let (columns, charts) = (form.columns, form.charts);
    let mut bookies: Vec<&BookieHealth> = bookies.iter().collect();
    bookies.sort_by_key(|bookie| (Reverse(bookie.pending), Reverse(bookie.answered)));
    let rows: Vec<Vec<String>> = bookies
        .iter()
        .map(|bookie| {
            let Percentiles { count, p50, p95, p99, .. } = bookie.reads;
            let mut row = vec![
                bookie.bookie.to_string(),
                bookie.state.as_str().to_owned(),
                bookie.pending.to_string(),
                bookie.answered.to_string(),
                ms(p50, count),
                ms(p95, count),
                ms(p99, count),
                bookie.timeouts.to_string(),
                bookie.unreachable.to_string(),
                (bookie.errors + bookie.rejected).to_string(),
                format!("{} of {}", bookie.hedges_won, bookie.hedges_sent),
            ];
            row.extend(charts.map(|(charts, glyphs)| charts.bars(&bookie.bookie, glyphs)));
            row
        })
        .collect();
    let heads: Vec<Column> = COLUMNS.into_iter().chain(charts.map(|_| LATELY)).collect();
    let mut lines = fit::table(&heads, &rows, columns);
    let hedge_after = reads.hedge_after.map_or("-".to_owned(), |after| format!("{} ms", ms(after, 1)));
    let said = [
        format!("hedge after {hedge_after}"),
        format!(
            "hedges {} sent, {} won, {} refused",
            reads.hedges_sent, reads.hedges_won, reads.hedges_refused
        ),
        format!("retries {}", reads.retries),
        format!("no replica well {}", reads.fail_open),
    ];
    lines.push(fit::parts(&said, "   ", columns));
    let unwell = bookies.iter().filter(|bookie| bookie.state != NodeState::Healthy);
    for (bookie, error) in unwell.filter_map(|bookie| Some((bookie, bookie.last_error.as_ref()?))) {
        let line = format!("{}: {}", bookie.bookie, within_line(error));
        lines.push(columns.map_or(line.clone(), |columns| line.chars().take(columns).collect()));
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

fn object(bookie: &BookieHealth) -> Value {
    let us = |latency: Duration| latency.as_micros() as u64;
    json!({
        "bookie_id": bookie.bookie.as_str(),
        "state": bookie.state.as_str(),
        "avoided": bookie.is_avoided,
        "pending": bookie.pending,
        "reads_sent": bookie.reads_sent,
        "answered": bookie.answered,
        "p50_us": us(bookie.reads.p50),
        "p95_us": us(bookie.reads.p95),
        "p99_us": us(bookie.reads.p99),
        "timeouts": bookie.timeouts,
        "unreachable": bookie.unreachable,
        "errors": bookie.errors,
        "rejected": bookie.rejected,
        "missing_copies": bookie.missing_copies,
        "probes_answered": bookie.probes_answered,
        "probes_failed": bookie.probes_failed,
        "hedges_sent": bookie.hedges_sent,
        "hedges_won": bookie.hedges_won,
        "last_error": bookie.last_error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_bookie_and_one_for_the_reads() {
        let mut bookie = BookieHealth::new(BookieId::new("10.0.0.1:3181").unwrap());
        (bookie.state, bookie.pending, bookie.reads_sent, bookie.answered) = (NodeState::Suspect, 2, 7, 3);
        (bookie.reads.count, bookie.reads.p50) = (3, Duration::from_micros(250));
        (bookie.timeouts, bookie.unreachable, bookie.errors, bookie.rejected) = (4, 5, 6, 1);
        (bookie.hedges_sent, bookie.hedges_won) = (9, 8);
        bookie.last_error = Some("cannot connect".to_owned());
        let mut reads = ReadHealth::default();
        reads.fail_open = 11;
        let text = render(std::slice::from_ref(&bookie), &reads, &Form::default());
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let expected = "10.0.0.1:3181 suspect 2 3 0.25 0.00 0.00 4 5 7 8 of 9";
        assert_eq!(lines[1], expected.split(' ').collect::<Vec<_>>(), "{text}");
        assert!(lines[2].ends_with(&["no", "replica", "well", "11"]), "{text}");
        assert_eq!(lines[3], ["10.0.0.1:3181:", "cannot", "connect"], "{text}");
        let mut busy = bookie.clone();
        busy.pending = 1_234_567;
        let text = render(&[bookie, busy], &ReadHealth::default(), &Form { columns: Some(80), charts: None });
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert!(
            text.lines().nth(1).is_some_and(|line| line.contains(" 1234567 ")),
            "the busiest first: {text}"
        );
        assert!(text.contains("p99 ms") && !text.contains("HEDGES WON"), "{text}");
    }

    #[test]
    fn each_bookie_has_a_chart_of_its_p99_with_gaps_where_it_was_silent() {
        let mut bookie = BookieHealth::new(BookieId::new("10.0.0.1:3181").unwrap());
        let mut charts = Charts::default();
        for ms in [1, 2, 4, 8, 0, 8] {
            bookie.answered += u64::from(ms > 0);
            bookie.reads.count = 20;
            bookie.reads.p99 = Duration::from_millis(ms);
            charts.look(std::slice::from_ref(&bookie));
        }
        charts.miss();
        let form = Form { columns: Some(80), charts: Some((&charts, Glyphs::Blocks)) };
        let text = render(std::slice::from_ref(&bookie), &ReadHealth::default(), &form);
        assert_eq!(
            text.lines().take(2).collect::<Vec<_>>(),
            [
                "BOOKIE         STATE      PENDING   p50 ms   p99 ms  TIMEOUTS        p99 LATELY",
                "10.0.0.1:3181  healthy          0     0.00     8.00         0           ▂▃▅█·█·",
            ],
            "{text}"
        );
        let narrow = Form { columns: Some(50), charts: Some((&charts, Glyphs::Ascii)) };
        let text = render(std::slice::from_ref(&bookie), &ReadHealth::default(), &narrow);
        assert!(text.lines().all(|line| line.chars().count() <= 50), "{text}");
        charts.look(&[]);
        assert!(charts.0.is_empty(), "of bookies that are gone nothing is kept");
    }
}
