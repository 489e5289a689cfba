//! A [`Look`] as text and as JSON.

use super::{Look, OneBookie};
use crate::ledger::form::{count, size, span, utc};
use crate::live::fit::{self, Column};
use crate::printable::within_line;
use bindery_client::RegistrationMode;
use bindery_repair::RepairReport;
use bindery_types::BookieId;
use serde_json::{Value, json};

/// Ledgers that cannot be repaired, and notes, that a text shows.
const SHOWN_MAX: usize = 20;

const COLUMNS: [Column; 7] = [
    Column::text("BOOKIE", 6, 0),
    Column::text("STATE", 9, 0),
    Column::number("FREE", 9, 2),
    Column::number("OF", 9, 4),
    Column::number("COPIES/S", 9, 1),
    Column::number("UNDER WAY", 9, 3),
    Column::text("", 0, 0),
];

/// The whole text. `width` is in characters; without one, no column is left out. `charts` stand behind what is missing.
pub fn text(look: &Look, width: Option<usize>, charts: &[String]) -> String {
    let mut lines =
        vec![fit::parts(&head(look), "   ", width), fit::parts(&repair(look), "   ", width), String::new()];
    let rows: Vec<Vec<String>> = look.bookies.iter().map(|bookie| row(look, bookie)).collect();
    lines.extend(fit::table(&COLUMNS, &rows, width));
    lines.push(String::new());
    lines.push(fit::parts(&missing(look), "   ", width));
    if look.missing.marked > 0 {
        lines.push(fit::parts(&progress(look), "   ", width));
    }
    lines.extend_from_slice(charts);
    let notes = look.notes();
    let mut several = |title: &str, all: Vec<String>, count: u64| {
        if all.is_empty() {
            return;
        }
        lines.push(String::new());
        for line in all.iter().take(SHOWN_MAX) {
            lines.push(fit::words(&format!("{title}  {}", within_line(line)), width));
        }
        let left = count.saturating_sub(all.len().min(SHOWN_MAX) as u64);
        if left > 0 {
            lines.push(format!("{title}  and {left} more"));
        }
    };
    several("STUCK", stuck(look), look.stuck_count);
    let count = notes.len() as u64;
    several("NOTE", notes, count);
    lines.into_iter().map(|line| line + "\n").collect()
}

fn head(look: &Look) -> Vec<String> {
    let of = |mode| look.bookies.iter().filter(|bookie| bookie.mode == mode).count() as u64;
    let (writable, read_only, away) =
        (of(Some(RegistrationMode::Writable)), of(Some(RegistrationMode::ReadOnly)), of(None));
    vec![
        utc(look.at_ms),
        format!(
            "{}: {writable} writable, {read_only} read-only, {away} away",
            count(look.bookies.len() as u64, "bookie", "bookies")
        ),
        format!("cluster {}", look.instance.as_deref().map_or("without INSTANCEID".into(), within_line)),
    ]
}

fn repair(look: &Look) -> Vec<String> {
    let auditors: Vec<_> = look.auditors.iter().map(|name| within_line(name)).collect();
    vec![
        format!("repair {}", if look.is_disabled { "DISABLED" } else { "enabled" }),
        format!("auditor {}", if auditors.is_empty() { "none".to_owned() } else { auditors.join(", ") }),
        match &look.delay {
            Ok(Some(delay)) => format!("a bookie is lost after {}", span(delay.as_secs_f64())),
            Ok(None) => "a bookie is lost after the time of its auditor".to_owned(),
            Err(_) => "when a bookie is lost cannot be read".to_owned(),
        },
    ]
}

fn row(look: &Look, bookie: &OneBookie) -> Vec<String> {
    let space = bookie.polled.answer.as_ref().and_then(|answer| answer.space);
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), size);
    let report = bookie.report();
    vec![
        bookie.id.to_string(),
        state(bookie).to_owned(),
        bytes(space.map(|space| space.free_space)),
        bytes(space.map(|space| space.total_space)),
        match (report, bookie.bytes_per_second) {
            (Some(_), Some(rate)) => format!("{}/s", size(rate as u64)),
            _ => "-".to_owned(),
        },
        report.map_or_else(|| "-".to_owned(), |report| report.under_way.len().to_string()),
        remarks(look, bookie).join("; "),
    ]
}

fn state(bookie: &OneBookie) -> &'static str {
    match bookie.mode {
        Some(RegistrationMode::Writable) => "writable",
        Some(RegistrationMode::ReadOnly) => "read-only",
        None => "away",
    }
}

fn remarks(look: &Look, bookie: &OneBookie) -> Vec<String> {
    let mut remarks = Vec::new();
    if bookie.mode.is_none() {
        remarks.extend(bookie.away_since_ms.map(|since| {
            let seconds = look.at_ms.saturating_sub(since).max(0) as f64 / 1000.0;
            format!("since {}, {}", utc(since), span(seconds))
        }));
    }
    if !bookie.has_cookie {
        remarks.push("no cookie".to_owned());
    }
    if look.auditors.iter().any(|auditor| auditor == bookie.id.as_str()) {
        remarks.push("auditor".to_owned());
    }
    if let Some(answer) = &bookie.polled.answer {
        remarks.extend(answer.read_only_because().map(str::to_owned));
        remarks.extend(answer.not_repairing.clone());
        match &answer.report {
            None if answer.not_repairing.is_none() && !look.copies_to_any() => {
                remarks.push("does not repair".to_owned());
            }
            Some(RepairReport { is_slowed_down: true, bytes_per_second: Some(limit), .. }) => {
                remarks.push(format!("slowed down to {}/s", size(*limit)));
            }
            _ => {}
        }
        let alarms = answer.alarms().count() as u64;
        if alarms > 0 {
            remarks.push(count(alarms, "alarm", "alarms"));
        }
    }
    remarks.extend(bookie.polled.trouble.clone());
    remarks
}

fn missing(look: &Look) -> Vec<String> {
    let missing = &look.missing;
    if missing.marked == 0 {
        return vec!["no ledger is marked as under-replicated".to_owned()];
    }
    let at_least = if missing.has_more { "at least " } else { "" };
    let mut parts = vec![format!("{at_least}{} marked", count(missing.marked, "ledger is", "ledgers are"))];
    for (copies, ledgers) in &missing.by_copies {
        parts.push(format!("{ledgers} with {}", count(*copies as u64, "copy left", "copies left")));
    }
    if missing.unknown > 0 {
        parts.push(format!("{} unknown or deleted", missing.unknown));
    }
    if missing.looked_at() < missing.marked {
        parts.push(format!("(of the {} looked at)", missing.looked_at()));
    }
    parts
}

fn progress(look: &Look) -> Vec<String> {
    let to_copy = match look.missing.bytes() {
        Some(bytes) => format!("about {} to copy", size(bytes)),
        None => "how much is to be copied is not known yet".to_owned(),
    };
    let Some(rates) = look.rates else { return vec![to_copy] };
    vec![
        to_copy,
        format!("{}/s", size(rates.bytes as u64)),
        format!("{:.1} ledgers/s", rates.ledgers),
        look.seconds_left()
            .map_or_else(|| "no end in sight".to_owned(), |left| format!("about {} left", span(left))),
    ]
}

/// A line for each ledger.
fn stuck(look: &Look) -> Vec<String> {
    look.stuck
        .iter()
        .flat_map(|(ledger, reasons)| {
            reasons.iter().map(move |(why, bookies)| format!("ledger {ledger}: {why} ({})", names(bookies)))
        })
        .collect()
}

/// The first names, and how many there are.
fn names(bookies: &[BookieId]) -> String {
    match bookies {
        [] => String::new(),
        [one] => one.to_string(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    }
}

/// The same for programs.
pub fn object(look: &Look) -> Value {
    let stuck: Vec<Value> = look
        .stuck
        .iter()
        .map(|(ledger, reasons)| {
            let reasons: Vec<Value> = reasons
                .iter()
                .map(|(why, bookies)| {
                    json!({ "why": why, "said_by": bookies.iter().map(BookieId::as_str).collect::<Vec<_>>() })
                })
                .collect();
            json!({ "ledger_id": ledger, "reasons": reasons })
        })
        .collect();
    let by_copies: serde_json::Map<String, Value> = look
        .missing
        .by_copies
        .iter()
        .map(|(copies, ledgers)| (copies.to_string(), (*ledgers).into()))
        .collect();
    json!({
        "at_ms": look.at_ms,
        "instance_id": look.instance,
        "repair": {
            "enabled": !look.is_disabled,
            "auditors": look.auditors,
            "lost_bookie_recovery_delay_s": look.delay.as_ref().ok().and_then(|delay| delay.map(|delay| delay.as_secs())),
        },
        "bookies": look.bookies.iter().map(of_bookie).collect::<Vec<_>>(),
        "under_replicated": {
            "ledgers": look.missing.marked,
            "more": look.missing.has_more,
            "by_copies": by_copies,
            "unknown": look.missing.unknown,
            "looked_at": look.missing.looked_at(),
            "bytes": look.missing.bytes(),
        },
        "bytes_per_second": look.rates.map(|rates| rates.bytes),
        "ledgers_per_second": look.rates.map(|rates| rates.ledgers),
        "seconds_left": look.seconds_left(),
        "stuck": stuck,
        "stuck_count": look.stuck_count,
        "notes": look.notes(),
    })
}

fn of_bookie(bookie: &OneBookie) -> Value {
    let answer = bookie.polled.answer.as_ref();
    let space = answer.and_then(|answer| answer.space);
    json!({
        "bookie_id": bookie.id.as_str(),
        "state": state(bookie),
        "cookie": bookie.has_cookie,
        "away_since_ms": bookie.away_since_ms,
        "answers": bookie.polled.trouble.is_none() && answer.is_some(),
        "error": bookie.polled.trouble,
        "free_bytes": space.map(|space| space.free_space),
        "total_bytes": space.map(|space| space.total_space),
        "read_only_because": answer.map(|answer| answer.read_only_because().collect::<Vec<_>>()),
        "alarms": answer.map(|answer| answer.alarms().collect::<Vec<_>>()),
        "repair": answer.and_then(|answer| answer.report.as_ref()),
        "repair_error": answer.and_then(|answer| answer.not_repairing.as_ref()),
        "bytes_per_second": bookie.bytes_per_second,
    })
}

#[cfg(test)]
mod tests {
    use super::super::bookies::{Answer, Polled, Space};
    use super::super::marks::MissingCopies;
    use super::super::{Look, OneBookie, Rates};
    use super::*;
    use crate::live::spark::Glyphs;
    use std::collections::BTreeMap;
    use std::time::Duration;

    fn bookie(name: &str, mode: Option<RegistrationMode>) -> OneBookie {
        OneBookie {
            id: BookieId::new(name).unwrap(),
            mode,
            has_cookie: true,
            away_since_ms: None,
            polled: Polled::default(),
            bytes_per_second: None,
        }
    }

    fn look() -> Look {
        let mut one = bookie("10.0.0.1:3181", Some(RegistrationMode::Writable));
        let mut report = RepairReport::default();
        (report.is_auditor, report.under_way) = (true, vec![5, 6]);
        let space = Space { free_space: 3 << 30, total_space: 8 << 30 };
        one.polled.answer = Some(Answer { space: Some(space), report: Some(report), ..Answer::default() });
        one.bytes_per_second = Some((2 << 20) as f64);
        let mut two = bookie("10.0.0.2:3181", Some(RegistrationMode::ReadOnly));
        two.polled.trouble = Some("no answer for 1.0 s".to_owned());
        let mut three = bookie("10.0.0.3:3181", None);
        three.away_since_ms = Some(0);
        let mut four = bookie("10.0.0.4:3181", Some(RegistrationMode::Writable));
        four.has_cookie = false;
        four.polled.answer = Some(Answer::default());
        let missing = MissingCopies::of(12, [(1, 2), (2, 10)], 80 << 20);
        let reasons =
            BTreeMap::from([("no bookie could take it".to_owned(), vec![one.id.clone(), four.id.clone()])]);
        Look {
            at_ms: 180_000,
            instance: Some("c1".to_owned()),
            is_disabled: false,
            delay: Ok(Some(Duration::from_secs(900))),
            auditors: vec![one.id.to_string()],
            bookies: vec![one, two, three, four],
            missing,
            rates: Some(Rates { bytes: (2 << 20) as f64, ledgers: 0.3 }),
            stuck: BTreeMap::from([(17, reasons)]),
            stuck_count: 3,
        }
    }

    #[test]
    fn a_look_is_one_picture() {
        let expected = "\
1970-01-01T00:03:00Z   4 bookies: 2 writable, 1 read-only, 1 away   cluster c1
repair enabled   auditor 10.0.0.1:3181   a bookie is lost after 15 min

BOOKIE         STATE           FREE         OF     COPIES/S  UNDER WAY
10.0.0.1:3181  writable     3.0 GiB    8.0 GiB  2.0 MiB/s          2  auditor
10.0.0.2:3181  read-only          -          -          -          -  no answer for 1.0 s
10.0.0.3:3181  away               -          -          -          -  since 1970-01-01T00:00:00Z, 3 min
10.0.0.4:3181  writable           -          -          -          -  no cookie; does not repair

12 ledgers are marked   2 with 1 copy left   10 with 2 copies left
about 80.0 MiB to copy   2.0 MiB/s   0.3 ledgers/s   about 40 s left

STUCK  ledger 17: no bookie could take it (10.0.0.1:3181 and 1 more)
STUCK  and 2 more

NOTE  2 ledgers are marked of which an entry has one live copy left, or none
";
        assert_eq!(
            text(&look(), None, &[]).replace("    COPIES/S", "  COPIES/S"),
            expected.replace("    COPIES/S", "  COPIES/S")
        );
        for width in [40, 80, 100] {
            let narrow = text(&look(), Some(width), &[]);
            assert!(narrow.lines().all(|line| line.chars().count() <= width.max(60)), "{width}:\n{narrow}");
            assert!(narrow.contains("10.0.0.3:3181  away"), "{narrow}");
        }
    }

    #[test]
    fn charts_stand_behind_what_is_missing() {
        let mut charts = super::super::Charts::default();
        for marked in [40, 30, 20, 12] {
            let mut look = look();
            look.missing.marked = marked;
            charts.look(&look);
        }
        charts.miss();
        let text = text(&look(), Some(70), &charts.lines(70, Glyphs::Blocks));
        let at = text.lines().position(|line| line.starts_with("about 80.0 MiB")).unwrap();
        let shown: Vec<Vec<&str>> =
            text.lines().skip(at + 1).take(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(shown[0], ["marked", "ledgers", "-", "█▇▅▄·", "most", "40"], "{text}");
        assert_eq!(shown[1], ["copied", "-", "████·", "most", "2.0", "MiB/s"], "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 70), "{text}");
    }

    #[test]
    fn a_look_is_one_object() {
        let object = object(&look());
        assert_eq!(object["bookies"][0]["free_bytes"], json!(3u64 << 30));
        assert_eq!(object["bookies"][0]["repair"]["under_way"], json!([5, 6]));
        assert_eq!(object["bookies"][1]["answers"], json!(false));
        assert_eq!(object["bookies"][2]["state"], json!("away"));
        assert_eq!(object["under_replicated"]["by_copies"], json!({ "1": 2, "2": 10 }));
        assert_eq!((&object["seconds_left"], &object["stuck_count"]), (&json!(40.0), &json!(3)));
        let said_by = ["10.0.0.1:3181", "10.0.0.4:3181"];
        assert_eq!(object["stuck"][0]["reasons"][0]["said_by"], json!(said_by));
        assert_eq!(object["repair"]["lost_bookie_recovery_delay_s"], json!(900));
    }

    #[test]
    fn what_keeps_repair_from_working_is_said() {
        let mut look = look();
        (look.is_disabled, look.auditors, look.delay) =
            (true, Vec::new(), Err("soon is no number".to_owned()));
        for bookie in &mut look.bookies {
            if let Some(answer) = &mut bookie.polled.answer {
                answer.report = None;
            }
        }
        let text = text(&look, None, &[]);
        for words in [
            "repair DISABLED",
            "bindery cluster repair enable",
            "auditor none",
            "there is no auditor",
            "soon is no number",
            "no bookie that answers repairs",
        ] {
            assert!(text.contains(words), "{words}:\n{text}");
        }
        assert_eq!(look.seconds_left(), None);
    }
}
