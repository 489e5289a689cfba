//! kill -9 of a standalone server while lines go through a pipe into `bindery ledger append ID --print-ids`.
//!
//! Goal: lines reported as acknowledged are there afterwards, in order, once, with the right content. Lines that were
//! not reported may be there too, as the next ones, without a gap. The append ends with 5 and one error that names the
//! last acknowledged entry.
//!
//! Method: entry k of a ledger is a line that follows from the ledger's id and k, so nothing need be remembered. After
//! each kill the server starts again on the same data, the ledger is closed (which recovers it), read and compared.
//! All ledgers are read once more before their data directory is left behind.
//!
//! `BINDERY_PIPE_KILLS`, `BINDERY_PIPE_KILL_SEED` and `BINDERY_PIPE_KILL_BOOKIES` set the number of kills (default 3),
//! the seed and the number of bookies; `tests/interop/pipe-kill` sets them from its options.

use crate::server::{Place, Server, bindery};
use bindery_io::{Random, SeededRandom};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A new data directory after so many kills: ledgers add up, and first starts are part of it.
const KILLS_PER_DIRECTORY: u64 = 100;
/// An append that outlives its server for longer than this has failed.
const APPEND_END_MAX: Duration = Duration::from_secs(60);
/// Bytes that go into one append at full speed; then some lines a millisecond, so that disks do not fill up.
const FULL_SPEED_BYTES: usize = 2 << 20;
/// In one kill of so many the server stays away until the append has given up, which takes the client's patience with
/// a metadata store (half a minute); otherwise it is started again at once, as a supervisor would.
const KILLS_PER_ABSENCE: u64 = 200;
const ABSENCE_AT: u64 = 40;

/// Entry `index` of a ledger: mostly short, one in fifty long, never the same twice.
fn line(ledger: u64, index: u64) -> Vec<u8> {
    let rng = SeededRandom::new(ledger.wrapping_mul(0x1_0000_0001).wrapping_add(index));
    let size = if rng.below(50) == 0 { rng.below(20_000) } else { rng.below(300) };
    let noise = rng.next_u64();
    let mut line = format!("ledger {ledger} line {index} ").into_bytes();
    line.extend((0..size).map(|i| b'a' + ((noise >> (i % 50)) as u8).wrapping_add(i as u8) % 26));
    line.push(b'\n');
    line
}

/// One `bindery ledger append ID --print-ids` with a pipe on either side.
struct Append {
    ledger: u64,
    first: u64,
    child: Child,
    enough: Arc<AtomicBool>,
    /// Ids printed so far; they are checked to be consecutive.
    printed: Arc<AtomicU64>,
    feeder: JoinHandle<u64>,
    reader: JoinHandle<Result<(), String>>,
    stderr: JoinHandle<String>,
}

struct Ended {
    ledger: u64,
    status: ExitStatus,
    /// Lines of the ledger that went into the pipe, earlier appends included.
    fed: u64,
    /// Lines of the ledger whose ids were printed, earlier appends included.
    acknowledged: u64,
    stderr: String,
}

impl Append {
    /// Appends from entry `first` on; `lines_max` ends the input.
    fn start(place: &Place, ledger: u64, first: u64, lines_max: u64) -> Append {
        let id = ledger.to_string();
        let mut command = bindery(&["ledger", "append", &id, "--print-ids"]);
        command.env("BINDERY_METADATA", place.metadata());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (mut input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut errors = child.stderr.take().unwrap();
        let (enough, printed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let feeder = std::thread::spawn({
            let enough = enough.clone();
            move || {
                let (mut index, mut bytes) = (first, 0);
                while index < first + lines_max && !enough.load(Ordering::Relaxed) {
                    let line = line(ledger, index);
                    bytes += line.len();
                    if input.write_all(&line).is_err() {
                        break;
                    }
                    index += 1;
                    if bytes > FULL_SPEED_BYTES && index.is_multiple_of(4) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
                index
            }
        });
        let reader = std::thread::spawn({
            let printed = printed.clone();
            move || {
                let mut expected = first;
                for text in BufReader::new(output).lines() {
                    let text = text.map_err(|error| error.to_string())?;
                    if text != expected.to_string() {
                        return Err(format!("ledger {ledger}: printed {text:?} instead of {expected}"));
                    }
                    expected += 1;
                    printed.store(expected - first, Ordering::Relaxed);
                }
                Ok(())
            }
        });
        let stderr = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = errors.read_to_string(&mut text);
            text
        });
        Append { ledger, first, child, enough, printed, feeder, reader, stderr }
    }

    /// Waits until some ids are printed, or it has ended.
    fn wait_printed(&mut self, count: u64) {
        let begun = Instant::now();
        while self.printed.load(Ordering::Relaxed) < count && self.child.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < APPEND_END_MAX, "ledger {}: nothing is acknowledged", self.ledger);
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Its end, expected within [`APPEND_END_MAX`]. `finish`: the input ends now.
    fn end(mut self, finish: bool) -> Result<Ended, String> {
        if finish {
            self.enough.store(true, Ordering::Relaxed);
        }
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if begun.elapsed() > APPEND_END_MAX {
                let _ = self.child.kill();
                return Err(format!(
                    "ledger {}: the append still runs after {APPEND_END_MAX:?}",
                    self.ledger
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let fed = self.feeder.join().unwrap();
        self.reader.join().unwrap()?;
        let stderr = self.stderr.join().unwrap();
        let acknowledged = self.first + self.printed.load(Ordering::Relaxed);
        Ok(Ended { ledger: self.ledger, status, fed, acknowledged, stderr })
    }
}

/// A ledger and what is known of it.
#[derive(Debug, Clone, Copy)]
struct Ledger {
    id: u64,
    acknowledged: u64,
    /// The entries read back last; a closed ledger stays as it is.
    read: Option<u64>,
}

#[derive(Default)]
struct Totals {
    kills: u64,
    ledgers: u64,
    acknowledged: u64,
    read: u64,
    lost: u64,
    faults: Vec<String>,
    restarts: Vec<Duration>,
    /// How long appends took to end whose server stayed away.
    absences: Vec<Duration>,
    codes: std::collections::BTreeMap<i32, u64>,
}

struct Run {
    rng: SeededRandom,
    totals: Totals,
}

impl Run {
    fn fault(&mut self, fault: String) {
        eprintln!("FAULT after {} kills: {fault}", self.totals.kills);
        self.totals.faults.push(fault);
    }

    fn create(&mut self, place: &Place) -> Option<Ledger> {
        let mut args = vec!["ledger", "create"];
        if place.bookies >= 3 {
            args.extend(["--ensemble", "3", "--ack-quorum", "2"]);
        }
        let output = place.run(&args);
        let id = String::from_utf8_lossy(&output.stdout).trim().parse().ok();
        match id {
            Some(id) if output.status.success() => {
                self.totals.ledgers += 1;
                Some(Ledger { id, acknowledged: 0, read: None })
            }
            _ => {
                self.fault(format!("create: {}, {}", output.status, String::from_utf8_lossy(&output.stderr)));
                None
            }
        }
    }

    /// An append that is to end by itself, everything acknowledged.
    fn append_all(&mut self, place: &Place, ledger: &mut Ledger) {
        let lines = 1 + self.rng.below(2000);
        let ended = Append::start(place, ledger.id, ledger.acknowledged, lines).end(false);
        match ended {
            Ok(ended) => {
                if !ended.status.success() || ended.acknowledged != ended.fed {
                    let (status, fed, acknowledged) = (ended.status, ended.fed, ended.acknowledged);
                    let id = ledger.id;
                    self.fault(format!(
                        "ledger {id}: an append of {fed} lines acknowledged {acknowledged} and ended with {status}: {}",
                        ended.stderr
                    ));
                }
                ledger.acknowledged = ended.acknowledged;
            }
            Err(fault) => self.fault(fault),
        }
    }

    /// Appends to all ledgers until the server is killed at a random moment; the server that runs afterwards.
    fn append_until_kill(&mut self, place: &Place, server: Server, ledgers: &mut [Ledger]) -> Server {
        let mut appends: Vec<Append> = ledgers
            .iter()
            .map(|ledger| Append::start(place, ledger.id, ledger.acknowledged, u64::MAX / 2))
            .collect();
        // One kill in ten may come before anything is acknowledged, or before the append is there at all.
        if self.rng.below(10) > 0 {
            appends.iter_mut().for_each(|append| append.wait_printed(1));
        }
        std::thread::sleep(Duration::from_micros(self.rng.below(300_000)));
        // Their input has no end, and nothing has happened to their server.
        for append in &mut appends {
            if let Some(status) = append.child.try_wait().unwrap() {
                self.fault(format!("ledger {}: ended with {status} before the kill", append.ledger));
            }
        }
        server.kill();
        let killed = Instant::now();
        let is_away = self.totals.kills % KILLS_PER_ABSENCE == ABSENCE_AT;
        self.totals.kills += 1;
        let mut restarted = None;
        if !is_away {
            std::thread::sleep(Duration::from_micros(self.rng.below(50_000)));
            restarted = Some(self.restart(place));
        }
        for (append, ledger) in appends.into_iter().zip(ledgers) {
            // An append that comes late finds the server that was started again, and would go on for ever.
            match append.end(!is_away) {
                Ok(ended) => {
                    if is_away {
                        self.totals.absences.push(killed.elapsed());
                    }
                    self.check_broken(&ended, ledger.acknowledged, is_away);
                    ledger.acknowledged = ended.acknowledged;
                }
                Err(fault) => self.fault(fault),
            }
        }
        restarted.unwrap_or_else(|| self.restart(place))
    }

    /// How an append must end whose server was killed.
    fn check_broken(&mut self, ended: &Ended, before: u64, is_away: bool) {
        let Ended { ledger, status, fed, acknowledged, stderr } = ended;
        let code = status.code().unwrap_or(-1);
        *self.totals.codes.entry(code).or_default() += 1;
        // 7: the server was gone before the append had reached it. 0: it was there again before.
        let is_expected = match code {
            0 => acknowledged == fed && !is_away,
            5 => true,
            7 => *acknowledged == before,
            _ => false,
        };
        if !is_expected {
            self.fault(format!(
                "ledger {ledger}: {acknowledged} acknowledged, ended with {status}: {stderr}"
            ));
        }
        if code == 0 {
            return;
        }
        let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("bindery: ")).collect();
        if errors.len() != 1 {
            self.fault(format!("ledger {ledger}: not one clear error: {stderr}"));
        }
        if code == 5 && *acknowledged > before {
            match last_acknowledged(stderr) {
                Some(last) if last + 1 >= *acknowledged => {}
                said => self.fault(format!(
                    "ledger {ledger}: entry {} was printed, the error names {said:?}: {stderr}",
                    acknowledged - 1
                )),
            }
        }
    }

    fn restart(&mut self, place: &Place) -> Server {
        let server = place.start();
        self.totals.restarts.push(server.start_took);
        server
    }

    /// Closes the ledger, which recovers it, and compares all of it.
    fn close_and_read(&mut self, place: &Place, ledger: &mut Ledger) {
        let id = ledger.id.to_string();
        let closed = place.run(&["ledger", "close", &id]);
        if !closed.status.success() {
            let stderr = String::from_utf8_lossy(&closed.stderr);
            self.fault(format!("ledger {id}: close ended with {}: {stderr}", closed.status));
        }
        self.read(place, ledger);
        self.totals.acknowledged += ledger.acknowledged;
        self.totals.read += ledger.read.unwrap_or(0);
    }

    fn read(&mut self, place: &Place, ledger: &mut Ledger) {
        let id = ledger.id.to_string();
        let mut child = bindery(&["ledger", "read", &id])
            .env("BINDERY_METADATA", place.metadata())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let (mut found, mut bytes, mut mismatch) = (0, Vec::new(), None);
        while output.read_until(b'\n', &mut bytes).unwrap() > 0 {
            if mismatch.is_none() && bytes != line(ledger.id, found) {
                let text = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned();
                mismatch = Some(format!("ledger {id}: entry {found} reads {text:?}"));
            }
            found += 1;
            bytes.clear();
        }
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let status = child.wait().unwrap();
        if !status.success() {
            self.fault(format!("ledger {id}: read ended with {status}: {stderr}"));
        }
        if let Some(mismatch) = mismatch {
            self.totals.lost += 1;
            self.fault(mismatch);
        }
        if found < ledger.acknowledged {
            self.totals.lost += ledger.acknowledged - found;
            self.fault(format!("ledger {id}: {} acknowledged, {found} there", ledger.acknowledged));
        }
        if ledger.read.is_some_and(|before| before != found) {
            self.fault(format!("ledger {id}: {:?} entries at its close, {found} now", ledger.read));
        }
        ledger.read = Some(found);
    }

    /// One kill; the server that runs afterwards.
    fn kill_once(&mut self, place: &Place, server: Server, all: &mut Vec<Ledger>) -> Server {
        let scenario = self.rng.below(10);
        let count = if (5..7).contains(&scenario) { 2 + self.rng.below(3) } else { 1 };
        let mut ledgers: Vec<Ledger> = (0..count).filter_map(|_| self.create(place)).collect();
        let server = match scenario {
            // One ledger, or several in parallel, each from its first entry on.
            0..7 => self.append_until_kill(place, server, &mut ledgers),
            // Appended to and handed over before: the kill meets a later append.
            7..9 => {
                for _ in 0..=self.rng.below(2) {
                    ledgers.iter_mut().for_each(|ledger| self.append_all(place, ledger));
                }
                self.append_until_kill(place, server, &mut ledgers)
            }
            // Killed while nobody appends: the ledger goes on where it stopped.
            _ => {
                ledgers.iter_mut().for_each(|ledger| self.append_all(place, ledger));
                std::thread::sleep(Duration::from_micros(self.rng.below(50_000)));
                server.kill();
                self.totals.kills += 1;
                let server = self.restart(place);
                ledgers.iter_mut().for_each(|ledger| self.append_all(place, ledger));
                server
            }
        };
        ledgers.iter_mut().for_each(|ledger| self.close_and_read(place, ledger));
        all.append(&mut ledgers);
        server
    }
}

/// The number that follows "entry" in the error.
fn last_acknowledged(stderr: &str) -> Option<u64> {
    let error = stderr.lines().find(|line| line.starts_with("bindery: "))?;
    let (_, after) = error.rsplit_once("acknowledged")?;
    after.split(|c: char| !c.is_ascii_digit()).find(|word| !word.is_empty())?.parse().ok()
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

fn quantile(times: &mut [Duration], q: f64) -> u128 {
    times.sort_unstable();
    times.get(((times.len() as f64 - 1.0) * q).round() as usize).map_or(0, Duration::as_millis)
}

#[test]
fn pipe_kill_loses_nothing_that_was_reported() {
    let kills = number("BINDERY_PIPE_KILLS", 3);
    let seed = number("BINDERY_PIPE_KILL_SEED", u64::from(std::process::id()));
    let bookies = u16::try_from(number("BINDERY_PIPE_KILL_BOOKIES", 1)).unwrap();
    eprintln!("pipe-kill: {kills} kills, {bookies} bookies, seed {seed}");
    // Beside the build: /tmp may be memory.
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut run = Run { rng: SeededRandom::new(seed), totals: Totals::default() };
    let mut said = Instant::now();
    while run.totals.kills < kills && run.totals.faults.is_empty() {
        let data = scratch.path().join(format!("data-{}", run.totals.kills));
        let place = Place::new(&data, bookies);
        let until = kills.min(run.totals.kills + KILLS_PER_DIRECTORY);
        let mut all = Vec::new();
        let mut server = place.start();
        while run.totals.kills < until && run.totals.faults.is_empty() {
            server = run.kill_once(&place, server, &mut all);
            if said.elapsed() > Duration::from_secs(30) {
                said = Instant::now();
                let Totals { kills, acknowledged, read, .. } = run.totals;
                eprintln!("pipe-kill: {kills} kills, {acknowledged} acknowledged, {read} read so far");
            }
        }
        all.iter_mut().for_each(|ledger| run.read(&place, ledger));
        let (status, _) = server.stop("-TERM");
        if !status.success() {
            run.fault(format!("the last stop ended with {status}"));
        }
        if run.totals.faults.is_empty() {
            std::fs::remove_dir_all(&data).unwrap();
        }
    }
    let totals = &mut run.totals;
    println!(
        "pipe-kill: kills={} ledgers={} acknowledged={} read={} lost={} faults={}",
        totals.kills,
        totals.ledgers,
        totals.acknowledged,
        totals.read,
        totals.lost,
        totals.faults.len()
    );
    println!(
        "pipe-kill: restart p50={} ms p99={} ms max={} ms; appends ended with {:?}; without a server after {:?}",
        quantile(&mut totals.restarts, 0.5),
        quantile(&mut totals.restarts, 0.99),
        quantile(&mut totals.restarts, 1.0),
        totals.codes,
        totals.absences
    );
    if !totals.faults.is_empty() {
        let kept = scratch.keep();
        panic!(
            "seed {seed}: {} faults, the first: {}; data kept in {}",
            totals.faults.len(),
            totals.faults[0],
            kept.display()
        );
    }
    assert_eq!(totals.kills, kills);
    assert!(totals.acknowledged > 0, "nothing was acknowledged: the kills proved nothing");
}
