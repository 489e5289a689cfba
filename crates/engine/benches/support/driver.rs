//! A load driver in process: producers with a window of outstanding adds each, as clients have, and no network.

use super::Histogram;
use bindery_engine::{Add, AddDone, AddSink, AdmissionGrant, Engine, GroupTimes, Origin};
use bindery_types::{EntryId, LedgerId, MasterKey};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Most bytes that a producer offers at once: what a connection finds in one read.
const BATCH_BYTES: usize = 256 << 10;

/// The state on which one producer waits.
#[derive(Default)]
struct Producer {
    answered: AtomicU64,
    is_waiting: AtomicBool,
    lock: Mutex<bool>,
    woken: Condvar,
}

impl Producer {
    fn wake(&self) {
        if self.is_waiting.swap(false, Ordering::SeqCst) {
            *self.lock.lock().unwrap() = true;
            self.woken.notify_one();
        }
    }

    /// Sleeps until something is answered or room is told, unless `is_ready`.
    fn sleep(&self, is_ready: impl Fn() -> bool) {
        self.is_waiting.store(true, Ordering::SeqCst);
        let mut woken = self.lock.lock().unwrap();
        if is_ready() {
            self.is_waiting.store(false, Ordering::SeqCst);
            return;
        }
        if !*woken {
            woken = self.woken.wait_timeout(woken, Duration::from_millis(100)).unwrap().0;
        }
        *woken = false;
        self.is_waiting.store(false, Ordering::SeqCst);
    }
}

/// Takes the answers; give it to the machine when it starts.
pub struct Sink {
    origin: Instant,
    producers: Vec<Producer>,
    /// Latencies of each class of entry.
    latencies: Mutex<Vec<Histogram>>,
}

impl Sink {
    pub fn new(producers: usize, classes: usize) -> Arc<Sink> {
        Arc::new(Sink {
            origin: Instant::now(),
            producers: (0..producers).map(|_| Producer::default()).collect(),
            latencies: Mutex::new(vec![Histogram::new(); classes]),
        })
    }

    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap()
    }

    fn take(&self) -> Vec<Histogram> {
        let mut latencies = self.latencies.lock().unwrap();
        let taken = latencies.clone();
        latencies.iter_mut().for_each(Histogram::clear);
        taken
    }
}

impl AddSink for Sink {
    fn on_adds_done(&self, _: &GroupTimes, shards: &[Vec<AddDone>]) {
        let now = self.now_ns();
        let mut latencies = self.latencies.lock().unwrap();
        for run in
            shards.iter().flat_map(|done| done.chunk_by(|a, b| a.origin.connection == b.origin.connection))
        {
            for d in run {
                assert_eq!(d.result, Ok(()));
                latencies[d.origin.txn as usize].record(now.saturating_sub(d.origin.tag), 1);
            }
            let producer = &self.producers[run[0].origin.connection as usize];
            producer.answered.fetch_add(run.len() as u64, Ordering::SeqCst);
            producer.wake();
        }
    }
}

/// Sizes of entries and how often each comes: one class of entry for each.
#[derive(Clone)]
pub struct Mix(pub Vec<(usize, u32)>);

impl Mix {
    pub fn of(bytes: usize) -> Mix {
        Mix(vec![(bytes, 1)])
    }

    /// The class of the `n`th entry: spread by a fixed pseudo-random sequence.
    fn class(&self, n: u64) -> usize {
        if self.0.len() == 1 {
            return 0;
        }
        let all: u32 = self.0.iter().map(|(_, weight)| weight).sum();
        let mut x = n.wrapping_add(0x9E37_79B9_7F4A_7C15);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let mut left = ((x ^ (x >> 31)) % u64::from(all)) as u32;
        for (class, (_, weight)) in self.0.iter().enumerate() {
            if left < *weight {
                return class;
            }
            left -= weight;
        }
        0
    }

    /// Mean size of an entry in bytes.
    pub fn mean(&self) -> f64 {
        let weights: f64 = self.0.iter().map(|(_, weight)| f64::from(*weight)).sum();
        self.0.iter().map(|(bytes, weight)| *bytes as f64 * f64::from(*weight)).sum::<f64>() / weights
    }
}

/// A load: so many producers over so many ledgers, each with its share of the outstanding adds.
#[derive(Clone)]
pub struct Load {
    pub mix: Mix,
    pub producers: usize,
    pub ledgers: usize,
    pub outstanding: usize,
    pub seconds: f64,
}

/// What a load got.
pub struct Outcome {
    pub adds: u64,
    pub bytes: u64,
    pub seconds: f64,
    pub cpu: Duration,
    /// By class.
    pub latencies: Vec<Histogram>,
}

impl Outcome {
    pub fn cpu_us_per_add(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.adds.max(1) as f64
    }

    pub fn adds_per_s(&self) -> f64 {
        self.adds as f64 / self.seconds
    }
}

/// A load that ran before used ledgers below this one.
static NEXT_LEDGER: AtomicU64 = AtomicU64::new(1);

/// Says which entry a producer adds next: the ledger, and the entry in it. `None` ends the load.
pub type Pick<'a> = Box<dyn FnMut() -> Option<(LedgerId, i64)> + Send + 'a>;

/// Runs a load to its end: everything sent is answered. Its ledgers take turns. Returns them as well.
pub fn run(engine: &Arc<Engine>, sink: &Arc<Sink>, load: &Load) -> (Outcome, Vec<LedgerId>) {
    let first = NEXT_LEDGER.fetch_add(load.ledgers as u64, Ordering::Relaxed) as i64;
    let ledgers: Vec<LedgerId> =
        (0..load.ledgers as i64).map(|i| LedgerId::new(first + i).unwrap()).collect();
    let in_turn = |index: usize| -> Pick<'static> {
        let mine: Vec<LedgerId> = ledgers.iter().skip(index).step_by(load.producers).copied().collect();
        let mut next = 0;
        Box::new(move || {
            let n = next;
            next += 1;
            Some((mine[n % mine.len()], (n / mine.len()) as i64))
        })
    };
    let outcome = run_picked(engine, sink, load, (0..load.producers).map(in_turn).collect());
    (outcome, ledgers)
}

/// As [`run`], of the entries that each producer picks.
pub fn run_picked(engine: &Arc<Engine>, sink: &Arc<Sink>, load: &Load, picks: Vec<Pick<'_>>) -> Outcome {
    sink.take();
    let (begun, cpu_before) = (Instant::now(), super::cpu());
    let totals: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let producers: Vec<_> = picks
            .into_iter()
            .enumerate()
            .map(|(index, pick)| scope.spawn(move || produce(engine, sink, load, index, pick, begun)))
            .collect();
        producers.into_iter().map(|producer| producer.join().unwrap()).collect()
    });
    Outcome {
        adds: totals.iter().map(|(adds, _)| adds).sum(),
        bytes: totals.iter().map(|(_, bytes)| bytes).sum(),
        seconds: begun.elapsed().as_secs_f64(),
        cpu: super::cpu() - cpu_before,
        latencies: sink.take(),
    }
}

fn produce(
    engine: &Arc<Engine>,
    sink: &Arc<Sink>,
    load: &Load,
    index: usize,
    mut pick: Pick<'_>,
    begun: Instant,
) -> (u64, u64) {
    let producer = &sink.producers[index];
    let answered_before = producer.answered.load(Ordering::SeqCst);
    let window = (load.outstanding / load.producers).max(1) as u64;
    let largest = load.mix.0.iter().map(|(bytes, _)| *bytes).max().unwrap();
    // One buffer: a body is its head and then the same bytes, as if it came from a socket buffer in cache.
    let batch_max = (BATCH_BYTES / load.mix.mean() as usize).clamp(1, 256);
    let mut bodies: Vec<Vec<u8>> = vec![vec![7; largest]; batch_max];
    let mut shards: Vec<Vec<usize>> = vec![Vec::new(); engine.shard_count()];
    let (mut sent, mut bytes, mut next) = (0u64, 0u64, 0u64);
    let outstanding = |sent: u64| sent - (producer.answered.load(Ordering::SeqCst) - answered_before);
    let mut is_over = false;
    while !is_over && begun.elapsed().as_secs_f64() < load.seconds {
        let room = window - outstanding(sent);
        // A window of many is refilled in large steps, as answers come: in batches of a group.
        if room == 0 {
            producer.sleep(|| outstanding(sent) < window);
            continue;
        }
        let count = (room as usize).min(batch_max);
        let mut sizes = Vec::with_capacity(count);
        for (i, body) in bodies.iter_mut().take(count).enumerate() {
            let n = next + i as u64;
            let Some((ledger, entry)) = pick() else {
                is_over = true;
                break;
            };
            for (at, v) in [ledger.get(), entry, entry - 1, 0].into_iter().enumerate() {
                body[at * 8..at * 8 + 8].copy_from_slice(&v.to_be_bytes());
            }
            let class = load.mix.class(n.wrapping_mul(31) + index as u64);
            sizes.push((ledger, entry, class, load.mix.0[class].0));
            shards[engine.shard_of(ledger)].push(i);
        }
        let count = sizes.len();
        next += count as u64;
        let now = sink.now_ns();
        for (shard, mine) in shards.iter_mut().enumerate() {
            let adds: Vec<Add<'_>> = mine
                .drain(..)
                .map(|i| {
                    let (ledger, entry, class, size) = sizes[i];
                    bytes += size as u64;
                    Add {
                        origin: Origin { connection: index as u64, txn: class as u64, tag: now },
                        ledger,
                        entry: EntryId::new(entry).unwrap(),
                        last_add_confirmed: EntryId::new(entry - 1),
                        key: MasterKey::new([1; 20]),
                        body: &bodies[i][..size],
                        is_recovery: false,
                        is_high_priority: false,
                    }
                })
                .collect();
            let (mut taken, mut turn) = (0, None);
            while taken < adds.len() {
                taken += match turn.take() {
                    Some(turn) => engine.add_batch_with(shard, &adds[taken..], turn),
                    None => engine.add_batch(shard, &adds[taken..]),
                };
                if taken < adds.len() {
                    turn = Some(wait_for_room(engine, sink, index, shard, &adds[taken..]));
                }
            }
        }
        sent += count as u64;
    }
    while outstanding(sent) > 0 {
        producer.sleep(|| outstanding(sent) == 0);
    }
    (sent, bytes)
}

/// As a connection does: in line, woken when it is its turn.
fn wait_for_room(
    engine: &Engine,
    sink: &Arc<Sink>,
    index: usize,
    shard: usize,
    left: &[Add<'_>],
) -> AdmissionGrant {
    let told: Arc<Mutex<Option<AdmissionGrant>>> = Arc::default();
    let (waker, place) = (sink.clone(), told.clone());
    engine.when_room(
        shard,
        left,
        Box::new(move |turn| {
            *place.lock().unwrap() = Some(turn);
            waker.producers[index].wake();
        }),
    );
    loop {
        if let Some(turn) = told.lock().unwrap().take() {
            return turn;
        }
        sink.producers[index].sleep(|| told.lock().unwrap().is_some());
    }
}
