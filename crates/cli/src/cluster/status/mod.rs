//! `bindery cluster status`: the bookies of a cluster, the copies that ledgers lack, and how repair goes, again and again.
//!
//! # Data flow
//! ```text
//! metadata: registrations, cookies, marks, settings, votes --> Marks --,
//! admin ports of the bookies: state, space, report of repair --> Polls --> Look --> text, screen, or JSON
//! ```
//! Without any admin port it says what metadata say: rates, reasons, and since when a bookie is away are missing then.
//!
//! # Invariants
//! 1. A bookie that does not answer is shown as such. A look waits for it no longer than its patience.
//! 2. Nothing is changed, and no request to an admin port has a token.

mod bookies;
mod marks;
mod render;

use self::bookies::{Polled, Polls};
use self::marks::{Marks, MissingCopies};
use super::args::StatusArgs;
use crate::admin_http::{Address, tls_if_named};
use crate::exit::Failure;
use crate::figure::grouped;
use crate::ledger::access::{store_failure, with_client};
use crate::ledger::form;
use crate::live::fit;
use crate::live::spark::{self, Glyphs, Row, Track};
use crate::live::{Event, Events, Key, Screen};
use crate::metadata_failure::cookie_failure;
use crate::output;
use crate::printable::within_line;
use bindery_client::{BookieInfo, Client, RegistrationMode};
use bindery_io::{Clock, SystemClock};
use bindery_repair::RepairReport;
use bindery_types::{BookieId, LedgerId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::time::Duration;
use tokio::time::Instant;

/// How long a look waits for admin ports: one alone, and one of many.
const PATIENCE_ONCE: Duration = Duration::from_secs(4);
const PATIENCE_LIVE: Duration = Duration::from_millis(500);
/// Marked ledgers whose metadata is read: for one look alone, and for each of many.
const READS_ONCE: usize = 5_000;
const READS_LIVE: usize = 500;
/// The time over which rates are taken, and between the two looks of one picture.
const RATE_WINDOW: Duration = Duration::from_secs(30);
const RATE_PAUSE: Duration = Duration::from_secs(1);
/// An error of repair is shown for so long.
const ERROR_SHOWN_MS: i64 = 300_000;

/// Runs the command.
pub fn run(args: StatusArgs) -> Result<(), Failure> {
    let access = args.access.clone();
    with_client(&access, false, |client| watch(client, args))
}

async fn watch(client: Client, args: StatusArgs) -> Result<(), Failure> {
    let interval = Duration::from_secs_f64(args.interval.clamp(0.1, 3600.0));
    let mut watcher = Watcher::new(client)?;
    if args.json || args.once || !Screen::is_possible() {
        let mut now = watcher.look(PATIENCE_ONCE, READS_ONCE).await?;
        if now.is_repairing() {
            tokio::time::sleep(RATE_PAUSE).await;
            now = watcher.look(PATIENCE_ONCE, READS_ONCE).await?;
        }
        return match args.json {
            true => output::write_all(&form::line(&render::object(&now))),
            false => output::write_text(&render::text(&now, None, &[])),
        };
    }
    // Whatever is wrong is said before the screen changes.
    let mut now = watcher.look(PATIENCE_LIVE, READS_LIVE).await?;
    let mut events = Events::new()?;
    let mut screen = Screen::enter()?;
    let glyphs = Glyphs::of(args.draw.ascii);
    let (mut trouble, mut answered_at): (Option<String>, _) = (None, Instant::now());
    let mut charts = Charts::default();
    charts.look(&now);
    loop {
        let (columns, _) = screen.size();
        let columns = usize::from(columns);
        let mut text = String::new();
        if let Some(trouble) = &trouble {
            let age = form::span(answered_at.elapsed().as_secs_f64());
            let line = format!("NOT UP TO DATE for {age}: {trouble}");
            let _ = writeln!(text, "{}", fit::words(&within_line(&line), Some(columns)));
        }
        text += &render::text(&now, Some(columns), &charts.lines(columns, glyphs));
        screen.draw_page(&glyphs.page(text))?;
        match events.next(&mut screen, interval).await {
            Event::Quit | Event::Key(Key::Quit) => return Ok(()),
            Event::Resized => continue,
            Event::Key(_) | Event::Time => {}
        }
        match watcher.look(PATIENCE_LIVE, READS_LIVE).await {
            Ok(look) => {
                charts.look(&look);
                (now, trouble, answered_at) = (look, None, Instant::now());
            }
            // The metadata store may come back.
            Err(failure) => {
                charts.miss();
                trouble = Some(failure.to_string());
            }
        }
    }
}

/// What looks brought, one after the other.
#[derive(Debug, Default)]
struct Charts {
    marked: Track,
    copied: Track,
}

impl Charts {
    fn look(&mut self, look: &Look) {
        self.marked.push(Some(look.missing.marked as f64));
        self.copied.push(look.rates.map(|rates| rates.bytes));
    }

    /// A look that brought nothing.
    fn miss(&mut self) {
        self.marked.push(None);
        self.copied.push(None);
    }

    fn lines(&self, columns: usize, glyphs: Glyphs) -> Vec<String> {
        let rows = [
            Row { name: "marked ledgers", track: &self.marked, words: |count| grouped(count as u64) },
            Row {
                name: "copied",
                track: &self.copied,
                words: |bytes| format!("{}/s", form::size(bytes as u64)),
            },
        ];
        spark::rows(&rows, columns, glyphs)
    }
}

/// A cluster at one moment.
pub struct Look {
    at_ms: i64,
    instance: Option<String>,
    is_disabled: bool,
    /// The delay in metadata; `None` if each auditor uses its own. An error if the node holds no number.
    delay: Result<Option<Duration>, String>,
    auditors: Vec<String>,
    bookies: Vec<OneBookie>,
    missing: MissingCopies,
    rates: Option<Rates>,
    /// What cannot be repaired, by ledger: reasons, each with the bookies that say so.
    stuck: BTreeMap<i64, BTreeMap<String, Vec<BookieId>>>,
    /// All of them that a bookie knows.
    stuck_count: u64,
}

/// A bookie at one moment.
pub struct OneBookie {
    id: BookieId,
    /// `None`: it is not registered.
    mode: Option<RegistrationMode>,
    has_cookie: bool,
    /// Since when the auditor misses it.
    away_since_ms: Option<i64>,
    polled: Polled,
    /// Bytes that it copied in a second.
    bytes_per_second: Option<f64>,
}

impl OneBookie {
    fn report(&self) -> Option<&RepairReport> {
        self.polled.answer.as_ref().and_then(|answer| answer.report.as_ref())
    }
}

/// What repair did in a second, all bookies together.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Rates {
    bytes: f64,
    ledgers: f64,
}

impl Look {
    fn is_repairing(&self) -> bool {
        self.missing.marked > 0 && self.bookies.iter().any(|bookie| bookie.report().is_some())
    }

    /// Whether a bookie's worker copies to other bookies, too.
    fn copies_to_any(&self) -> bool {
        self.bookies.iter().filter_map(OneBookie::report).any(|report| report.copies_to_any)
    }

    /// About how long it will take until nothing is missing, by bytes if they are known, or else by ledgers.
    fn seconds_left(&self) -> Option<f64> {
        let Rates { bytes, ledgers } = self.rates?;
        let marked = self.missing.marked as f64;
        if marked == 0.0 || self.is_disabled {
            return None;
        }
        let by_bytes = self.missing.bytes().filter(|left| *left > 0).map(|left| left as f64 / bytes);
        let left = by_bytes.unwrap_or(marked / ledgers);
        left.is_finite().then_some(left)
    }

    /// What an operator should know.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.is_disabled {
            notes.push("repair is disabled, nothing is copied: bindery cluster repair enable".to_owned());
        }
        if self.auditors.is_empty() {
            notes.push(
                "there is no auditor, so no loss is noticed: start bindery repair, or bookies with autoRecoveryDaemonEnabled=true"
                    .to_owned(),
            );
        }
        if let Err(why) = &self.delay {
            notes.push(format!("{why}: bindery cluster repair delay 15m"));
        }
        let has_answers = self.bookies.iter().any(|bookie| bookie.polled.answer.is_some());
        let has_worker = self.bookies.iter().any(|bookie| bookie.report().is_some());
        if self.missing.marked > 0 && has_answers && !has_worker {
            notes.push(
                "no bookie that answers repairs ledgers (bindery repair or Java's daemon may, unseen)"
                    .to_owned(),
            );
        }
        // A worker that is told to copies to these, too.
        let is_for_own = !self.copies_to_any();
        let is_idle =
            self.bookies.iter().filter_map(OneBookie::report).all(|report| report.under_way.is_empty());
        let idle = self.bookies.iter().filter(|bookie| {
            let gets_none = bookie.polled.answer.as_ref().is_some_and(|answer| answer.report.is_none());
            bookie.mode == Some(RegistrationMode::Writable) && gets_none
        });
        let idle: Vec<&str> = idle.map(|bookie| bookie.id.as_str()).collect();
        if has_worker && is_for_own && is_idle && self.missing.marked > self.stuck_count && !idle.is_empty() {
            notes.push(format!(
                "ledgers of which only bookies that do not repair could take the copies wait for bindery repair, or for these to repair: {}",
                idle.join(", ")
            ));
        }
        let dangerous: u64 =
            self.missing.by_copies.iter().filter(|(copies, _)| **copies <= 1).map(|(_, count)| count).sum();
        if dangerous > 0 {
            notes.push(format!(
                "{} of which an entry has one live copy left, or none",
                form::count(dangerous, "ledger is marked", "ledgers are marked")
            ));
        }
        for bookie in &self.bookies {
            let Some(answer) = &bookie.polled.answer else { continue };
            notes.extend(answer.alarms().map(|alarm| format!("{}: {alarm}", bookie.id)));
            let is_recent = |report: &&RepairReport| {
                report.last_error_ms.is_some_and(|at| self.at_ms.saturating_sub(at) < ERROR_SHOWN_MS)
            };
            if let Some(error) =
                bookie.report().filter(is_recent).and_then(|report| report.last_error.as_ref())
            {
                notes.push(format!("{}: repair: {error}", bookie.id));
            }
        }
        notes
    }
}

/// Bytes and ledgers of each bookie's worker since it began.
type Done = BTreeMap<BookieId, (u64, u64)>;

/// Looks at a cluster, again and again.
struct Watcher {
    client: Client,
    clock: SystemClock,
    marks: Marks,
    polls: Polls,
    /// Progress at the last looks, the newest last, as far back as [`RATE_WINDOW`].
    done: VecDeque<(Instant, Done)>,
}

impl Watcher {
    fn new(client: Client) -> Result<Watcher, Failure> {
        let polls = Polls::new(tls_if_named()?);
        Ok(Watcher {
            client,
            clock: SystemClock::new(),
            marks: Marks::default(),
            polls,
            done: VecDeque::new(),
        })
    }

    async fn look(&mut self, patience: Duration, reads_max: usize) -> Result<Look, Failure> {
        let layout = self.client.layout().clone();
        let failure = |error| store_failure(&error);
        let registered = self.client.bookies().await.map_err(failure)?;
        let cookies = layout.cookies().list().await.map_err(|error| cookie_failure(&error))?;
        let settings = layout.repair_settings();
        let is_disabled = settings.is_disabled().await.map_err(failure)?;
        let delay = match settings.delay().await {
            Err(bindery_client::StoreError::Protocol(why)) => Err(why),
            other => Ok(other.map_err(failure)?),
        };
        let auditors = layout.auditor_votes().auditors().await.map_err(failure)?;
        let instance = self.client.instance_id().await.map_err(failure)?;
        let live = registered.iter().map(|bookie| bookie.id.clone()).collect();
        let missing = self.marks.look(&layout, live, reads_max).await.map_err(failure)?;
        let port =
            |bookie: &BookieInfo| (bookie.id.clone(), Address::registered(&bookie.id, &bookie.endpoints));
        self.polls.ask(registered.iter().map(port).collect(), patience).await;
        let bookies = self.bookies(&registered, cookies);
        let (stuck, stuck_count) = stuck(&bookies, &self.marks);
        let at_ms = self.clock.wall_ms();
        let mut look = Look {
            at_ms,
            instance,
            is_disabled,
            delay,
            auditors,
            bookies,
            missing,
            rates: None,
            stuck,
            stuck_count,
        };
        self.rate(&mut look);
        Ok(look)
    }

    /// All that are registered, have a cookie, or are missed by the auditor.
    fn bookies(&self, registered: &[BookieInfo], cookies: Vec<BookieId>) -> Vec<OneBookie> {
        let mut away: BTreeMap<BookieId, i64> = BTreeMap::new();
        for report in self.polls.reports().filter(|report| report.is_auditor) {
            away.extend(report.away.iter().filter_map(|(id, since)| Some((BookieId::new(id).ok()?, *since))));
        }
        let cookies: BTreeSet<BookieId> = cookies.into_iter().collect();
        // During a change of the mode a bookie is listed twice; the last one counts.
        let modes: BTreeMap<&BookieId, RegistrationMode> =
            registered.iter().map(|bookie| (&bookie.id, bookie.mode)).collect();
        let ids: BTreeSet<&BookieId> = modes.keys().copied().chain(&cookies).chain(away.keys()).collect();
        ids.into_iter()
            .map(|id| OneBookie {
                id: id.clone(),
                mode: modes.get(id).copied(),
                has_cookie: cookies.contains(id),
                away_since_ms: away.get(id).copied(),
                polled: self.polls.of(id),
                bytes_per_second: None,
            })
            .collect()
    }

    /// Rates since the oldest look of the window, from bookies that answered both times and did not restart.
    fn rate(&mut self, look: &mut Look) {
        let now = Instant::now();
        let done: Done = look
            .bookies
            .iter()
            .filter_map(|bookie| {
                Some((bookie.id.clone(), (bookie.report()?.bytes, bookie.report()?.repaired)))
            })
            .collect();
        while self.done.len() > 1
            && self.done.front().is_some_and(|(at, _)| now.duration_since(*at) > RATE_WINDOW)
        {
            self.done.pop_front();
        }
        if let Some((at, before)) = self.done.front().filter(|_| !done.is_empty()) {
            let seconds = now.duration_since(*at).as_secs_f64().max(0.001);
            let mut sum = Rates { bytes: 0.0, ledgers: 0.0 };
            for bookie in &mut look.bookies {
                let (Some((bytes, ledgers)), Some(before)) = (done.get(&bookie.id), before.get(&bookie.id))
                else {
                    continue;
                };
                let (Some(bytes), Some(ledgers)) =
                    (bytes.checked_sub(before.0), ledgers.checked_sub(before.1))
                else {
                    continue;
                };
                bookie.bytes_per_second = Some(bytes as f64 / seconds);
                sum.bytes += bytes as f64 / seconds;
                sum.ledgers += ledgers as f64 / seconds;
            }
            look.rates = Some(sum);
        }
        self.done.push_back((now, done));
    }
}

/// Reasons for what is not repaired, of ledgers that are still marked, and how many a bookie knows at most.
fn stuck(bookies: &[OneBookie], marks: &Marks) -> (BTreeMap<i64, BTreeMap<String, Vec<BookieId>>>, u64) {
    let mut stuck: BTreeMap<i64, BTreeMap<String, Vec<BookieId>>> = BTreeMap::new();
    let mut count = 0;
    for bookie in bookies {
        let Some(report) = bookie.report() else { continue };
        count = count.max(report.stuck_count);
        for one in &report.stuck {
            if LedgerId::new(one.ledger).is_some_and(|ledger| marks.is_marked(ledger)) {
                stuck
                    .entry(one.ledger)
                    .or_default()
                    .entry(one.why.clone())
                    .or_default()
                    .push(bookie.id.clone());
            }
        }
    }
    let count = count.max(stuck.len() as u64);
    (stuck, count)
}
