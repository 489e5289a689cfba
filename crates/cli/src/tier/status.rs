//! `bindery tier status`: how far ledgers are behind, what holds that up, and what it costs.

use super::args::TierStatusArgs;
use super::{STATUS_PATH as PATH, WORDS};
use crate::admin_http::{Address, ask, ask_json};
use crate::exit::Failure;
use crate::ledger::form;
use crate::live::{Event, Events, Key, Screen};
use crate::output;
use crate::runtime;
use bindery_reconciler::{DurationsReport, Shown, TierReport};
use std::fmt::Write as _;
use std::time::Duration;

/// Runs the command.
pub fn run(args: &TierStatusArgs) -> Result<(), Failure> {
    let runtime = runtime::single()?;
    runtime.block_on(async {
        let address = args.admin.find().await?;
        if args.json {
            let mut text = ask(&address, "GET", PATH, &WORDS).await?;
            text.push(b'\n');
            return output::write_all(&text);
        }
        if args.once || !Screen::is_possible() {
            let report = fetch(&address).await?;
            return output::write_text(&render(&report, None));
        }
        live(&address, Duration::from_secs_f64(args.interval.clamp(0.1, 3600.0))).await
    })
}

async fn fetch(address: &Address) -> Result<TierReport, Failure> {
    ask_json(address, "GET", PATH, &WORDS).await
}

async fn live(address: &Address, interval: Duration) -> Result<(), Failure> {
    // Whatever is wrong with the address is said before the screen changes.
    let mut now = fetch(address).await?;
    let (mut before, mut trouble) = (None, None);
    let mut events = Events::new()?;
    let mut screen = Screen::enter()?;
    loop {
        let rates = before.as_ref().map(|before| (before, interval));
        let mut text = render(&now, rates);
        if let Some(trouble) = &trouble {
            let _ = writeln!(text, "NOT UP TO DATE: {trouble}");
        }
        screen.draw_page(&text)?;
        match events.next(&mut screen, interval).await {
            Event::Quit | Event::Key(Key::Quit) => return Ok(()),
            Event::Resized => continue,
            Event::Key(_) | Event::Time => {}
        }
        match fetch(address).await {
            Ok(report) => {
                before = Some(std::mem::replace(&mut now, report));
                trouble = None;
            }
            // It may come back.
            Err(failure) => trouble = Some(failure.to_string()),
        }
    }
}

/// A report, and the one of an interval before.
struct Page<'a> {
    now: &'a TierReport,
    before: Option<(&'a TierReport, Duration)>,
}

impl Page<'_> {
    /// The text of one line: each of its numbers, worded as its row says.
    fn numbers(&self, line: &str) -> String {
        let words =
            TierReport::SHOWN.iter().filter(|shown| shown.line == line).map(|shown| self.words(shown));
        words.collect::<Vec<_>>().join(", ")
    }

    fn words(&self, shown: &Shown) -> String {
        let number = (shown.of)(self.now);
        let text = shown.words.replace("{}", &number.to_string()).replace("{size}", &form::size(number));
        let rate = self.before.map_or(String::new(), |(before, interval)| {
            let bytes = number.saturating_sub((shown.of)(before)) as f64 / interval.as_secs_f64();
            format!(", {}/s", form::size(bytes as u64))
        });
        text.replace("{rate}", &rate)
    }

    /// Whether a number of the line is above zero.
    fn has_some(&self, line: &str) -> bool {
        TierReport::SHOWN.iter().any(|shown| shown.line == line && (shown.of)(self.now) > 0)
    }
}

/// The whole of it; with the report of an interval before, rates too.
fn render(now: &TierReport, before: Option<(&TierReport, Duration)>) -> String {
    let page = Page { now, before };
    let mut out = String::new();
    let mut line = |name: &str, text: String| {
        let _ = writeln!(out, "{name:<10}{text}");
    };
    let because = |why: &Option<String>| why.as_ref().map_or(String::new(), |why| format!(" ({why})"));
    line("tier", format!("{}, cluster {}", now.store, now.cluster));
    line("state", state(now));
    line(
        "lag",
        format!(
            "{} entries, {}, {} (median {}, p99 {})",
            now.lag.entries,
            form::size(now.lag.bytes),
            seconds(now.lag.seconds),
            seconds(now.lag_p50_seconds),
            seconds(now.lag_p99_seconds)
        ),
    );
    line(
        "limit",
        match &now.limit {
            None => "none: everything that is due finds room".to_owned(),
            Some((stage, share)) => format!("{stage}, busy {:.0} % of the time", share * 100.0),
        },
    );
    line("share", format!("{}, which is {}", page.numbers("share"), now.name));
    if let Some(why) = &now.unable {
        line("ALARM", format!("others do this one's part as well: {why}"));
    }
    if let Some(why) = &now.no_upkeep {
        line("upkeep", format!("others do this one's part of it, while there are any: {why}"));
    }
    if !now.unreachable.is_empty() {
        let which = now.unreachable.join(", ");
        line(
            "reach",
            format!(
                "registered bookies do not answer this tierer: {which}. Ledgers that are on them alone stay behind"
            ),
        );
    }
    line("ledgers", page.numbers("ledgers"));
    line("moved", page.numbers("moved"));
    line(
        "now",
        format!(
            "{} of {} objects under construction, {}, next round after {}",
            now.objects_building.0,
            now.objects_building.1,
            page.numbers("now"),
            seconds(now.interval_seconds)
        ),
    );
    line(
        "read",
        format!(
            "{}, limit {}{}",
            page.numbers("read"),
            now.bytes_per_second.map_or("none".to_owned(), |bytes| format!("{}/s", form::size(bytes))),
            if now.slowed_down { ", slowed down because bookies are busy" } else { "" }
        ),
    );
    line("updates", page.numbers("updates"));
    line("catalogue", page.numbers("catalogue"));
    line("upkeep", page.numbers("upkeep"));
    line("rewritten", page.numbers("rewritten") + &because(&now.kept_for));
    line("scan", page.numbers("scan") + &because(&now.orphan_kept));
    if let Some(why) = &now.orphan_unreadable {
        line("unreadable", format!(" {why}"));
    }
    if now.ledgers_waiting > 0 {
        let (waiting, turn) = (now.ledgers_waiting, seconds(now.turn_seconds));
        let why = match now.crowded {
            true => "there is no room for them, and with each that is watched there is something to do",
            false => "there is no room for all, so they have it in turn",
        };
        let so = format!(
            "{waiting} ledgers wait for a look ({turn} by now, or for the last turn): {why}. The lag says nothing of them"
        );
        line(if now.crowded { "ALARM" } else { "turn" }, format!("{so}. More tierers share them"));
    }
    if let Some(stopped) = &now.deletions_stopped {
        line("doubt", format!("nothing is deleted: {stopped}"));
    }
    if let Some(doubt) = &now.upkeep_doubt {
        line("doubt", doubt.clone());
    }
    let requests = &now.requests;
    line(
        "requests",
        format!(
            "{} put, {} get, {} list, {} delete; {} written, {} read{}{}",
            requests.puts,
            requests.gets,
            requests.lists,
            requests.deletes,
            form::size(requests.bytes_put),
            form::size(requests.bytes_got),
            requests.per_gib.map_or(String::new(), |count| format!("; {count:.0} for each GiB")),
            requests.per_idle_hour.map_or(String::new(), |count| format!("; {count:.0} in an idle hour"))
        ),
    );
    let cost = &now.cost;
    line(
        "cost",
        format!(
            "${:.4} for requests{}{}, ${:.2} a month for what is stored (list prices, no bill)",
            cost.requests_usd,
            cost.per_gib_usd.map_or(String::new(), |usd| format!(", ${usd:.4} for each GiB")),
            cost.idle_hour_usd.map_or(String::new(), |usd| format!(", ${usd:.4} for an idle hour")),
            cost.storage_month_usd
        ),
    );
    if page.has_some("trouble") {
        line("trouble", page.numbers("trouble"));
    }
    if let Some(damaged) = &now.damaged {
        line("damaged", format!("{} objects: {damaged}", now.objects_damaged));
    }
    for error in now.last_error.iter().chain(&now.upkeep_error) {
        line("last error", format!(" {error}"));
    }
    for alarm in &now.alarms {
        line("ALARM", alarm.clone());
    }
    let _ = writeln!(out, "\n{:<12}{:>8}{:>12}{:>12}{:>12}", "STAGE", "ROUNDS", "MEDIAN", "99 %", "LAST");
    let mut row = |name: &str, took: &DurationsReport| {
        let _ = writeln!(
            out,
            "{name:<12}{:>8}{:>12}{:>12}{:>12}",
            took.count,
            seconds(took.p50_seconds),
            seconds(took.p99_seconds),
            seconds(took.last_seconds)
        );
    };
    for stage in &now.stages {
        row(&stage.stage, &stage.took);
    }
    row("round", &now.cycles);
    row("one ledger", &now.lre);
    if !now.behind.is_empty() {
        let _ = writeln!(
            out,
            "\n{:>20}  {:<9}{:>12}{:>12}{:>10}  WHY",
            "LEDGER", "STATE", "ENTRIES", "BYTES", "LAG"
        );
        for ledger in &now.behind {
            let _ = writeln!(
                out,
                "{:>20}  {:<9}{:>12}{:>12}{:>10}  {}",
                ledger.ledger,
                ledger.state,
                ledger.lag.entries,
                form::size(ledger.lag.bytes),
                seconds(ledger.lag.seconds),
                ledger.why.as_deref().unwrap_or("")
            );
        }
    }
    out
}

fn state(now: &TierReport) -> String {
    match (now.stopping, now.paused) {
        (true, _) => "ending".to_owned(),
        (false, true) => "paused; bindery tier resume ends that".to_owned(),
        (false, false) if now.objects_building.0 > 0 => "moving ledgers".to_owned(),
        (false, false) => "up to date or waiting for more".to_owned(),
    }
}

/// A time for people.
fn seconds(seconds: f64) -> String {
    match seconds {
        short if short < 0.001 => "0 ms".to_owned(),
        short if short < 1.0 => format!("{:.0} ms", short * 1000.0),
        some if some < 120.0 => format!("{some:.1} s"),
        long if long < 7200.0 => format!("{:.0} min", long / 60.0),
        long if long < 172_800.0 => format!("{:.1} h", long / 3600.0),
        long => format!("{:.1} days", long / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let shown = [0.0, 0.0421, 3.21, 300.0, 36_000.0, 864_000.0].map(seconds);
        assert_eq!(shown, ["0 ms", "42 ms", "3.2 s", "5 min", "10.0 h", "10.0 days"]);
    }

    /// A row that names a line which the page does not have would be lost.
    #[test]
    fn every_number_stands_on_the_page() {
        let report = TierReport { upload_failures: 1, ..TierReport::default() };
        let text = render(&report, None);
        let page = Page { now: &report, before: None };
        for shown in TierReport::SHOWN {
            let words = page.words(shown);
            let is_there = text.lines().any(|line| line.starts_with(shown.line) && line.contains(&words));
            assert!(is_there, "{}: {words}\n{text}", shown.line);
        }
    }

    #[test]
    fn what_holds_it_up_and_what_a_person_must_see_is_there() {
        let mut report = TierReport {
            limit: Some(("upload".to_owned(), 0.93)),
            alarms: vec!["ledger 7: look".to_owned()],
            ..TierReport::default()
        };
        report.cost.per_gib_usd = Some(0.0009);
        (report.entry_bytes, report.read_failures) = (3 << 20, 2);
        (report.unreferenced_objects, report.upkeep_doubt) = (7, Some("an old copy".to_owned()));
        let before = TierReport { entry_bytes: 1 << 20, ..report.clone() };
        let text = render(&report, Some((&before, Duration::from_secs(2))));
        for expected in [
            "upkeep    7 objects wait for their deletion, 0 deleted",
            "moved     0 entries, 3.0 MiB, 1.0 MiB/s, 0 objects",
            "trouble   0 uploads failed, 2 ledgers left out",
            "doubt     an old copy",
            "upload, busy 93 % of the time",
            "ALARM     ledger 7: look",
            "$0.0009 for each GiB",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        let quiet = render(&TierReport::default(), None);
        assert!(quiet.contains("everything that is due finds room") && !quiet.contains("trouble"), "{quiet}");
    }
}
