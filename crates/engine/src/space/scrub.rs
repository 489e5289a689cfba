//! The scrub: everything in the live logs is read and checked in the background, again and again.
//!
//! # Data flow
//! ```text
//! pass: live logs of all directories, from the place where the wall clock says a pass is
//!   log: opened again by its name (is it there, is it this one: header, footer, trailer) -> extents against those in use
//!        -> `LogCheck`, some bytes at a time -> findings -> log line, status, damage register
//! ```
//!
//! # Invariants
//! 1. Nothing is changed or removed. What is found goes into the damage register (`damage`), which says when the log may be rewritten;
//!    what was in there and is found sound leaves it. The log is dropped like any other when nothing in it is live. Its intact
//!    entries are read as before.
//! 2. A log that goes while it is checked is left; its findings stay reported.
//! 3. A requested pass covers every log that was live when it began, and runs as fast as the budget allows.
//! 4. What keeps a log from being opened or read for want of descriptors or memory is no damage: the log is tried again.
//!
//! # Limits
//! One log at a time; bytes of a step: [`STEP_BYTES`]. Of its runs 408 are in memory, or all if they are anyway. Findings kept: 100
//! of a pass; log lines: [`LINES_MAX`] of a log. The journal and the pages of the state table are checked at each
//! start, not here. Reads bypass the kernel's page cache where the file system can: the check covers the medium, and
//! pages that readers have cached stay.
//!
//! # Position
//! A pass takes `scrub_period`, so the wall clock alone tells where one is: at `time mod period` of the way, in the order
//! of directories and log ids. A bookie that starts goes on there, and keeps nothing on disk for it.

use super::{LogRef, Upkeep, as_ns};
use crate::config::SpaceConfig;
use crate::damage::Copies;
use crate::space_desk::{ScrubFinding, ScrubPass, SpaceDesk};
use bindery_io::is_shortage;
use bindery_storage::entry_log::{LogCheck, LogDamage, LogEvent, LogPart};
use bindery_storage::{EntryLog, Extent, OpenLogError, ReadError, RunCursor};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Bytes looked at in one step: what the disk reads and a core checks in a fraction of a millisecond, so that nobody is
/// kept waiting for long.
const STEP_BYTES: u64 = 256 << 10;
/// Findings of one log that are logged one by one.
const LINES_MAX: u64 = 10;
/// Before a log is tried again that could not be opened for want of descriptors or memory.
const SHORTAGE_PAUSE: Duration = Duration::from_secs(1);
/// Between two periodic passes, unless the period is shorter.
const IDLE_PAUSE: Duration = Duration::from_secs(60);

pub(super) struct Scrub {
    pass: Option<Pass>,
    /// Bytes that the pace allows now.
    tokens: i64,
    refilled_ns: u64,
    /// Bytes of all live logs when the pass began: with the period they give the pace.
    total_bytes: u64,
    /// No periodic pass begins before.
    not_before_ns: u64,
    /// A log could not be opened or read for want of descriptors or memory: when it is tried again.
    retry_ns: Option<u64>,
}

struct Pass {
    /// Asked for, and the number of the request that it answers.
    answers: Option<u64>,
    /// It is of some logs alone, with damage that the register had no room for.
    is_of_left_out: bool,
    logs: VecDeque<LogRef>,
    log: Option<Checking>,
    done: ScrubPass,
}

/// The log being checked.
struct Checking {
    at: LogRef,
    log: Arc<EntryLog>,
    /// Runs to check now.
    extents: Vec<Extent>,
    /// Those behind them.
    runs: Option<RunCursor>,
    check: LogCheck,
    findings: u64,
}

impl Pass {
    /// It runs as fast as the budget allows.
    fn is_asked(&self) -> bool {
        self.answers.is_some() || self.is_of_left_out
    }
}

impl Scrub {
    pub(super) fn new(now_ns: u64) -> Scrub {
        Scrub {
            pass: None,
            tokens: 0,
            refilled_ns: now_ns,
            total_bytes: 0,
            not_before_ns: now_ns,
            retry_ns: None,
        }
    }

    /// The log is not live any more. A pass has opened it by itself, and of a file that is open the blocks are not free, though its
    /// name is gone; it may be hours before the pass goes on.
    pub(super) fn forget(&mut self, log: LogRef) {
        if let Some(pass) = &mut self.pass {
            pass.log.take_if(|checking| checking.at == log);
        }
    }

    /// Bytes of a second at which a pass takes the period.
    fn rate(&self, config: &SpaceConfig) -> u64 {
        if config.scrub_bytes_per_second > 0 {
            return config.scrub_bytes_per_second;
        }
        (u128::from(self.total_bytes) * 1_000_000_000)
            .checked_div(config.scrub_period.as_nanos())
            .map_or(0, |rate| u64::try_from(rate).unwrap_or(u64::MAX))
            .max(1)
    }

    fn refill(&mut self, now: u64, config: &SpaceConfig) {
        let elapsed = u128::from(now.saturating_sub(self.refilled_ns));
        let earned = elapsed * u128::from(self.rate(config)) / 1_000_000_000;
        // A fraction of a byte is not lost: the time it took is counted again.
        if earned > 0 {
            self.refilled_ns = now;
            let earned = i64::try_from(earned).unwrap_or(i64::MAX);
            self.tokens = self.tokens.saturating_add(earned).min(STEP_BYTES as i64);
        }
    }

    /// Until a periodic pass may go on.
    fn pause(&self, config: &SpaceConfig) -> Duration {
        let missing = u128::from(self.tokens.min(0).unsigned_abs()) + 1;
        let ns = missing * 1_000_000_000 / u128::from(self.rate(config));
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)).max(Duration::from_millis(1))
    }
}

impl Upkeep {
    /// Checks on, when it is time. Returns after how long it wants to be called again.
    pub(super) fn scrub_on(&mut self, now: u64, config: &SpaceConfig) -> Option<Duration> {
        let wanted = self.shared.space().wanted_scrub();
        let is_answered = self
            .space
            .scrub
            .pass
            .as_ref()
            .is_some_and(|pass| pass.answers.is_some_and(|n| Some(n) >= wanted));
        // A requested pass ends before another requested one begins.
        let is_free = self.space.scrub.pass.as_ref().is_none_or(|pass| pass.answers.is_none());
        let left_out = match &self.space.scrub.pass {
            Some(pass) if pass.is_asked() => Vec::new(),
            _ => self.shared.damage().take_left_out(),
        };
        if wanted.is_some() && !is_answered && is_free {
            self.begin_pass(config, wanted);
        } else if !left_out.is_empty() {
            self.begin_pass_of(left_out);
        } else if self.space.scrub.pass.is_none() {
            let is_off = config.scrub_period.is_zero() && config.scrub_bytes_per_second == 0;
            if is_off {
                return None;
            }
            if now < self.space.scrub.not_before_ns {
                return Some(Duration::from_nanos(self.space.scrub.not_before_ns - now));
            }
            self.begin_pass(config, None);
        }
        if let Some(retry) = self.space.scrub.retry_ns.filter(|retry| now < *retry) {
            return Some(Duration::from_nanos(retry - now));
        }
        let is_asked = self.space.scrub.pass.as_ref().is_some_and(Pass::is_asked);
        self.space.scrub.refill(now, config);
        if !is_asked && self.space.scrub.tokens <= 0 {
            return Some(self.space.scrub.pause(config));
        }
        if self.space.budget.available() == 0 || self.is_put_off(now) {
            return Some(self.space.budget.pause(config).max(Duration::from_millis(5)));
        }
        self.space.stepped_ns = now;
        let looked = self.scrub_step(now);
        self.space.is_rewrites_turn = true;
        self.space.budget.spend(looked);
        if !is_asked {
            let looked = i64::try_from(looked).unwrap_or(i64::MAX);
            self.space.scrub.tokens = self.space.scrub.tokens.saturating_sub(looked);
        }
        if self.space.scrub.pass.is_none() {
            // Of a bookie without data a pass takes no time at all.
            self.space.scrub.not_before_ns = now.saturating_add(as_ns(IDLE_PAUSE.min(config.scrub_period)));
        }
        let pause = if is_asked { self.space.budget.pause(config) } else { self.space.scrub.pause(config) };
        Some(pause)
    }

    fn begin_pass(&mut self, config: &SpaceConfig, answers: Option<u64>) {
        let mut logs: Vec<(LogRef, u64)> = Vec::new();
        for (index, view) in self.shared.views().iter().enumerate() {
            logs.extend(view.logs().iter().map(|log| ((index, log.log_id()), log.size())));
        }
        let total: u64 = logs.iter().map(|(_, bytes)| bytes).sum();
        self.space.scrub.total_bytes = total;
        if answers.is_none() {
            let period_ms = match config.scrub_bytes_per_second {
                0 => config.scrub_period.as_millis(),
                rate => u128::from(total) * 1000 / u128::from(rate),
            };
            let wall_ms = u128::from(self.clock.wall_ms().unsigned_abs());
            let way = u128::from(total) * (wall_ms % period_ms.max(1)) / period_ms.max(1);
            let mut before = 0;
            let passed = logs.iter().take_while(|(_, bytes)| {
                before += u128::from(*bytes);
                before <= way
            });
            let passed = passed.count() % logs.len().max(1);
            logs.rotate_left(passed);
        }
        let done = ScrubPass {
            is_asked_for: answers.is_some(),
            begin_ms: self.clock.wall_ms(),
            ..ScrubPass::default()
        };
        let logs = logs.into_iter().map(|(log, _)| log).collect();
        self.space.scrub.pass = Some(Pass { answers, is_of_left_out: false, logs, log: None, done });
        self.shared.space().on_pass_begun(total);
    }

    /// A pass of some logs alone, as fast as one that was asked for. It takes the place of a periodic one, which goes on where the clock
    /// says.
    fn begin_pass_of(&mut self, logs: Vec<LogRef>) {
        let sizes = logs.iter().filter_map(|at| self.shared.views()[at.0].log(at.1)).map(|log| log.size());
        self.shared.space().on_pass_begun(sizes.sum());
        let done = ScrubPass { is_asked_for: true, begin_ms: self.clock.wall_ms(), ..ScrubPass::default() };
        let logs = logs.into();
        self.space.scrub.pass = Some(Pass { answers: None, is_of_left_out: true, logs, log: None, done });
    }

    /// Checks a piece of the next log, or ends the pass; returns the bytes looked at.
    fn scrub_step(&mut self, now: u64) -> u64 {
        let Some(mut pass) = self.space.scrub.pass.take() else { return 0 };
        if pass.log.is_none() {
            let Some(at) = pass.logs.pop_front() else {
                pass.done.end_ms = self.clock.wall_ms();
                self.shared.space().on_pass_ended(pass.done, pass.answers);
                return 0;
            };
            match self.begin_log_check(at, &mut pass.done) {
                Ok(begun) => pass.log = begun,
                Err(error) => self.put_off(now, &mut pass, at, &error.to_string()),
            }
        }
        let mut looked = 0;
        if let Some(mut checking) = pass.log.take() {
            let is_live =
                self.shared.views()[checking.at.0].logs().iter().any(|l| l.log_id() == checking.at.1);
            if is_live {
                match self.check_on(&mut checking, &mut pass.done, &mut looked) {
                    Ok(true) => self.end_log_check(checking, &mut pass.done),
                    Ok(false) => pass.log = Some(checking),
                    Err(what) => self.put_off(now, &mut pass, checking.at, &what),
                }
            }
        }
        pass.done.bytes += looked;
        self.shared.space().on_scrubbed(looked, pass.done.bytes);
        self.space.scrub.pass = Some(pass);
        looked
    }

    /// Invariant 4.
    fn put_off(&mut self, now: u64, pass: &mut Pass, at: LogRef, what: &str) {
        if self.space.scrub.retry_ns.is_none() {
            tracing::warn!(
                what,
                "the scrub is paused and will retry this log; this does not mean that the log is \
             damaged"
            );
        }
        self.space.scrub.retry_ns = Some(now.saturating_add(as_ns(SHORTAGE_PAUSE)));
        pass.logs.push_front(at);
    }

    /// `None` when the log has gone.
    ///
    /// # Errors
    /// It cannot be opened for want of descriptors or memory.
    fn begin_log_check(
        &mut self,
        at: LogRef,
        done: &mut ScrubPass,
    ) -> Result<Option<Checking>, OpenLogError> {
        let (index, log_id) = at;
        let Some(log) = self.shared.views()[index].log(log_id) else { return Ok(None) };
        let mut checking =
            Checking { at, log, extents: Vec::new(), runs: None, check: LogCheck::default(), findings: 0 };
        self.shared.damage().begin_check(at);
        let directory = &self.directories[index];
        // By its name, as the next start will.
        match EntryLog::open_medium(directory.disk(), directory.path(), log_id) {
            Ok(found) => {
                let identity = |log: &EntryLog| (log.generation(), log.size(), log.footer_checksum());
                if identity(&found) == identity(&checking.log) {
                    checking.log = Arc::new(found);
                } else {
                    let what = "the file holds another log than the one in use";
                    self.on_finding(&mut checking, done, Found::frame(0, what));
                }
            }
            Err(error) if error.is_shortage() => return Err(error),
            Err(error) => self.on_finding(&mut checking, done, Found::not_opened(&error)),
        }
        match self.shared.views()[index].resident_runs(log_id) {
            Some(runs) => checking.extents = runs,
            None => match self.shared.views()[index]
                .indexed_cursor(&checking.log)
                .unwrap_or_else(|| checking.log.runs())
            {
                Ok(runs) => {
                    checking.runs = Some(runs);
                    self.note_unlisted(&mut checking, done);
                }
                Err(ReadError::Disk(error)) if is_shortage(&error.source) => {
                    return Err(OpenLogError::Disk(error));
                }
                Err(error) => {
                    let what = error.to_string();
                    self.on_finding(&mut checking, done, Found::frame(0, &what));
                    self.shared.damage().note_more(at, checking.log.path());
                }
            },
        }
        self.space.scrub.retry_ns = None;
        Ok(Some(checking))
    }

    /// Checks a piece; true when the log is done.
    ///
    /// # Errors
    /// Something cannot be read for want of memory.
    fn check_on(
        &mut self,
        checking: &mut Checking,
        done: &mut ScrubPass,
        looked: &mut u64,
    ) -> Result<bool, String> {
        let (mut found, mut copies) = (Vec::new(), Vec::new());
        let mut shortage = None;
        let mut more = 0;
        let (log, extents) = (checking.log.clone(), std::mem::take(&mut checking.extents));
        let is_done = checking.check.step(&log, &extents, STEP_BYTES, &mut |event| match event {
            LogEvent::Bytes(bytes) => *looked += bytes,
            LogEvent::Damage(damage) if damage.is_shortage() => shortage = Some(damage.what),
            LogEvent::Damage(damage) => {
                copies.extend(copies_of(&damage).map(|copies| (copies, damage.offset)));
                match found.len() < SpaceDesk::FINDINGS_MAX {
                    true => found.push(Found::of(damage)),
                    false => more += 1,
                }
            }
        });
        checking.extents = extents;
        for (copies, offset) in copies {
            self.shared.damage().note_checked(checking.at, log.path(), copies, offset);
        }
        if let Some(what) = shortage {
            return Err(what);
        }
        let is_done = is_done && {
            checking.extents = match checking.runs.as_mut().map(RunCursor::take_some) {
                Some(Ok(behind)) => behind,
                Some(Err(ReadError::Disk(error))) if is_shortage(&error.source) => {
                    return Err(error.to_string());
                }
                Some(Err(error)) => {
                    found.push(Found::frame(0, &error.to_string()));
                    self.shared.damage().note_more(checking.at, log.path());
                    Vec::new()
                }
                None => Vec::new(),
            };
            checking.extents.is_empty()
        };
        self.note_unlisted(checking, done);
        for found in found {
            self.on_finding(checking, done, found);
        }
        checking.findings += more;
        done.findings += more;
        self.shared.space().on_more_findings(more);
        Ok(is_done)
    }

    /// Notes the runs that the cursor has passed over.
    fn note_unlisted(&mut self, checking: &mut Checking, done: &mut ScrubPass) {
        let unlisted = checking.runs.as_mut().map(RunCursor::take_unreadable).unwrap_or_default();
        for run in &unlisted {
            self.shared.damage().note_unlisted(checking.at, &checking.log, run);
        }
        if let (Some(first), Some(last)) = (unlisted.first(), unlisted.last()) {
            let (count, first, last) = (unlisted.len(), first.ledger, last.ledger);
            let what = format!(
                "the footer does not say any more where {count} runs of entries are, of ledgers from {first} to {last}"
            );
            self.on_finding(checking, done, Found::frame(0, &what));
        }
    }

    fn on_finding(&mut self, checking: &mut Checking, done: &mut ScrubPass, found: Found) {
        let file = checking.log.path().display().to_string();
        let advice = advice(&found);
        checking.findings += 1;
        done.findings += 1;
        match found.part {
            None | Some(LogPart::Frame) => self.shared.damage().note_frame(checking.at, checking.log.path()),
            Some(LogPart::Padding) => self.shared.damage().note_padding(checking.at, checking.log.path()),
            Some(LogPart::Index | LogPart::Entry) => {}
        }
        if checking.findings <= LINES_MAX {
            let affected = found.affected_text();
            let (offset, what) = (found.offset, &found.what);
            tracing::error!(file, offset, affected, what, advice, "the scrub found damage");
        }
        let affected = found.affected.map(|(ledger, first, last)| (ledger.get(), first.get(), last.get()));
        self.shared.space().on_finding(ScrubFinding {
            file,
            offset: found.offset,
            what: found.what,
            affected,
            advice,
        });
    }

    fn end_log_check(&mut self, checking: Checking, done: &mut ScrubPass) {
        done.logs += 1;
        done.entries += checking.check.totals().entries;
        if checking.findings > LINES_MAX {
            let file = checking.log.path().display().to_string();
            let (listed, findings) = (LINES_MAX, checking.findings);
            tracing::error!(file, findings, listed, "the scrub found more damage in a log than it lists");
        }
        self.shared.damage().end_check(checking.at);
    }
}

/// The copies that a damage takes.
fn copies_of(damage: &LogDamage) -> Option<Copies> {
    let ((ledger, first, last), generation) = (damage.affected?, damage.generation?);
    Some(Copies { ledger, first, last, generation })
}

/// One damage, as reported.
struct Found {
    /// `None`: the file as a whole.
    part: Option<LogPart>,
    offset: Option<u64>,
    what: String,
    affected: Option<(bindery_types::LedgerId, bindery_types::EntryId, bindery_types::EntryId)>,
}

impl Found {
    fn frame(offset: u64, what: &str) -> Found {
        Found { part: Some(LogPart::Frame), offset: Some(offset), what: what.to_owned(), affected: None }
    }

    fn not_opened(error: &OpenLogError) -> Found {
        match error {
            OpenLogError::Damaged(damaged) => Found::frame(damaged.offset, &damaged.what),
            OpenLogError::Disk(_) | OpenLogError::NewerFormat(_) => {
                Found { part: None, offset: None, what: error.to_string(), affected: None }
            }
        }
    }

    fn of(damage: LogDamage) -> Found {
        let LogDamage { part, offset, mut what, expected_found, affected, .. } = damage;
        if let Some((expected, found)) = expected_found {
            what = format!("{what}: expected {expected}, found {found}");
        }
        Found { part: Some(part), offset: Some(offset), what, affected }
    }

    fn affected_text(&self) -> String {
        match self.affected {
            Some((ledger, first, last)) if first == last => format!("ledger {ledger} entry {first}"),
            Some((ledger, first, last)) => format!("ledger {ledger} entries {first} to {last}"),
            None if self.part == Some(LogPart::Padding) => "no entry: nothing reads these bytes".to_owned(),
            None => "the whole log, at the next start".to_owned(),
        }
    }
}

/// What to do about it, with commands that exist.
fn advice(found: &Found) -> String {
    match found.part {
        Some(LogPart::Entry | LogPart::Index) => {
            "these entries are answered with an error, never as absent, and readers take another replica; the others of \
             the log are served. The bookie marks their ledger for repair: a worker brings them from other replicas (see \
             \"bindery cluster under-replicated\"; where no bookie repairs, run \"bindery repair\"), and this log is \
             rewritten then"
                .to_owned()
        }
        Some(LogPart::Padding) => {
            "no data is lost, and the log is rewritten; but a disk that changed these bytes will change others: look at the \
             kernel's log and replace it in time"
                .to_owned()
        }
        Some(LogPart::Frame) | None => {
            "this bookie serves on from what it has in memory, and will not start again with this file. It is writing the \
             log anew from memory, or, where entries cannot be found any more, once a worker has brought them from other \
             replicas: keep it running until the file is gone. If it stays, have the bookie's ledgers copied \
             (\"bindery bookie recover BOOKIE_ID\", once it is stopped), or restore the file from a copy; after a stop, \
             \"bindery verify DIR\" says what is lost with it"
                .to_owned()
        }
    }
}
